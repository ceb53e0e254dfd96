#include "pipeline/extract/serve.hpp"

#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>

#include <sys/mman.h>
#include <unistd.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/threads/activity.hpp"
#include "core/io/posix_io.hpp"
#include "core/transport/rank_threads.hpp"
#include "pipeline/extract/array_reader.hpp"
#include "pipeline/extract/channel.hpp"
#include "stages/write/extent_writer.hpp"

namespace reshard {
namespace {

/// Memory that can be had without swapping; the largest number where the system does not say.
std::uint64_t free_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::uint64_t kibibytes = 0;
    if (word == "MemAvailable:" && file >> kibibytes) return kibibytes << 10U;
  }
  return std::numeric_limits<std::uint64_t>::max();
}

/// The bytes of a file, in memory, for as long as the object lives.
class Mapped {
 public:
  Mapped(Descriptor const& file, std::uint64_t bytes) : bytes_(bytes) {
    void* const place =
        ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file.number(), 0);
    if (place == MAP_FAILED) fail_errno("memory of an answer", "map", errno);
    begin_ = static_cast<std::byte*>(place);
  }
  ~Mapped() { ::munmap(begin_, bytes_); }
  Mapped(Mapped const&) = delete;
  Mapped& operator=(Mapped const&) = delete;
  std::span<std::byte const> bytes() const { return {begin_, bytes_}; }

 private:
  std::byte* begin_ = nullptr;
  std::uint64_t bytes_;
};

[[noreturn]] void refuse_request(std::string_view what) {
  fail(ErrorKind::usage, "a request {}. Use the Python module of the same installation.", what);
}

HalfOpen<Index> cut_of(Json const& item) {
  Json::Array const* const ends = item.items();
  if (ends == nullptr || ends->size() != 2 || (*ends)[0].integer() == nullptr ||
      (*ends)[1].integer() == nullptr)
    refuse_request("has a cut that is no pair of numbers");
  return {*(*ends)[0].integer(), *(*ends)[1].integer()};
}

ArrayChoice choice_of(Json const& request) {
  ArrayChoice choice;
  Json const* const read = request.find("read");
  if (read == nullptr || read->items() == nullptr || read->items()->empty())
    refuse_request("reads nothing");
  for (Json const& pattern : *read->items()) {
    if (pattern.text() == nullptr) refuse_request("has a name that is no text");
    choice.patterns.push_back(*pattern.text());
  }
  if (Json const* const at = request.find("at")) {
    if (at->text() == nullptr) refuse_request("has an index that is no text");
    choice.at = *at->text();
  }
  if (Json const* const cuts = request.find("cut")) {
    if (cuts->items() == nullptr) refuse_request("has a cut that is no list");
    for (Json const& cut : *cuts->items()) choice.cuts.push_back(cut_of(cut));
  }
  return choice;
}

bool is_stored(Json const& request) {
  Json const* const stored = request.find("stored");
  if (stored != nullptr && stored->boolean() == nullptr)
    refuse_request("says neither yes nor no to stored names");
  return stored != nullptr && *stored->boolean();
}

class Server {
 public:
  Server(CheckpointQuery const& query, Channel const& channel, Comm const& comm)
      : query_(query),
        channel_(channel),
        comm_(comm),
        threads_(rank_threads(comm)),
        headed_(open_headers(query, comm)),
        logical_(headed_, query, again, comm) {}

  void run() {
    begin_phase("answering requests");
    Json notes = Json::array();
    std::string const& newer = headed_.checkpoint.run.newer_saves;
    for (std::string const* note : {&newer, &logical_.catalogue().listing.prefix_note})
      if (!note->empty()) notes.push(*note);
    for (std::string const& note : logical_.ignored()) notes.push(note);
    Json hello;
    hello.set("format", headed_.checkpoint.format->name())
        .set("tensors", names(logical_))
        .set("notes", std::move(notes));
    bool heard = channel_.answer(hello);
    while (heard) {
      std::optional<Json> const request = channel_.next();
      if (!request) return;
      auto const error = capture([&] { heard = answer(*request); });
      if (error)
        heard = channel_.answer(
            Json().set("exit_code", exit_code(error->kind())).set("error", error->sentence()));
    }
  }

 private:
  static constexpr char const* again = "open it again when no program writes the checkpoint";

  bool answer(Json const& request) {
    ArrayReader& reader = is_stored(request) ? stored() : logical_;
    if (request.find("read") == nullptr)
      return channel_.answer(Json().set("tensors", names(reader)));
    return answer(reader, choice_of(request));
  }

  bool answer(ArrayReader& reader, ArrayChoice const& choice) {
    ArrayFile const arrays = reader.lay_out(choice, "an answer", threads_);
    std::uint64_t const bytes = arrays.file.size_bytes;
    if (std::uint64_t const free = free_memory_bytes(); bytes > free)
      fail(
          ErrorKind::resources,
          "{} of arrays were asked for, and {} of memory are free. Take them in parts: one layer at "
          "a time, or with get_slice().",
          human_bytes(bytes), human_bytes(free));
    Descriptor const memory(::memfd_create("reshard-arrays", MFD_CLOEXEC));
    if (memory.number() < 0 || ::ftruncate(memory.number(), narrow<off_t>(bytes)) != 0)
      fail_errno("memory of an answer", "make", errno);
    FileSet written({fmt::format("/proc/self/fd/{}", memory.number())}, FileSet::Access::write, 1,
                    std::make_shared<PosixIo>(WriteMode::buffered));
    written.open(0)->write_at(0, std::as_bytes(std::span(arrays.file.header)));
    WriteObserver const unobserved;
    ExtentWriter writer(written, unobserved, nullptr, threads_);
    // A reader that cuts an array wants these bytes alone.
    reader.read(arrays, writer, threads_,
                choice.cuts.empty() ? RecordReading::complete : RecordReading::as_is, comm_);
    if (reader.has_digests()) reader.compare_digests(arrays, Mapped(memory, bytes).bytes());
    return channel_.answer(Json().set("bytes", bytes), memory.number());
  }

  /// By the names in the files.
  ArrayReader& stored() {
    if (stored_) return *stored_;
    return stored_.emplace(headed_, by_stored_names(query_), again, comm_);
  }

  static Json names(ArrayReader const& reader) {
    Json tensors = Json::array();
    std::string const all = "*";
    for (ChosenTensor const& tensor :
         choose_tensors(*reader.catalogue().model, reader.catalogue().source, {&all, 1}, {})) {
      Json axes = Json::array();
      Json shape = Json::array();
      Json indices = Json::array();
      for (DomainAxis const& axis : tensor.axes) {
        axes.push(reader.axis_name(axis));
        Json runs = Json::array();
        for (Run const& run : axis.runs) runs.push(Json(Json::Array{run.begin, run.end}));
        indices.push(std::move(runs));
      }
      for (Index const size : tensor.shape) shape.push(size);
      tensors.push(Json()
                       .set("name", tensor.name)
                       .set("dtype", name(tensor.dtype))
                       .set("shape", std::move(shape))
                       .set("axes", std::move(axes))
                       .set("indices", std::move(indices)));
    }
    return tensors;
  }

  CheckpointQuery const& query_;
  Channel const& channel_;
  Comm const& comm_;
  std::size_t threads_;
  HeadedCheckpoint headed_;
  ArrayReader logical_;
  std::optional<ArrayReader> stored_;  ///< once it is asked for
};

}  // namespace

void serve_arrays(CheckpointQuery const& query, int descriptor, Comm const& comm) {
  if (comm.size() > 1)
    fail(ErrorKind::usage, "--serve: {} ranks were started. Start one process.", comm.size());
  Channel const channel(descriptor);
  Server(query, channel, comm).run();
}

}  // namespace reshard
