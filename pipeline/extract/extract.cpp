#include "pipeline/extract/extract.hpp"

#include <memory>
#include <optional>
#include <system_error>

#include <fmt/ranges.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/shown_name.hpp"
#include "core/base/threads/activity.hpp"
#include "core/containers/safetensors/header_frame.hpp"
#include "core/transport/rank_threads.hpp"
#include "pipeline/extract/array_reader.hpp"
#include "pipeline/extract/single_file.hpp"
#include "pipeline/publication/shared_edges.hpp"
#include "stages/write/extent_writer.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Axes of tensors by stored names are only numbered.
bool is_named(std::string const& axis) { return axis.front() < '0' || axis.front() > '9'; }

/// A loader may take any file in the folder for a part of the checkpoint.
void check_place(ExtractQuery const& query, Checkpoint const& checkpoint) {
  std::error_code error;
  fs::path const place = resolved_path(query.output, error);
  if (!error)
    for (fs::path const& taken : {query.path, fs::path(checkpoint.folder)})
      if (holds(resolved_path(taken, error), place))
        fail(ErrorKind::target,
             "{}: is inside the checkpoint {}, and could be taken for a part of it. Choose "
             "another path for -o.",
             query.output.string(), taken.string());
}

void write(ArrayReader& reader, ArrayFile const& arrays, ExtractQuery const& query,
           std::size_t threads, Comm const& comm) {
  begin_phase("writing the tensors");
  SingleFile out({query.output, arrays.file.size_bytes,
                  std::make_shared<safetensors::HeaderFrame const>(arrays.file.header)},
                 query.existing, comm);
  EdgeBytes edges = find_edges(arrays.plan, comm);
  FileSet written({out.staging()}, FileSet::Access::write);
  WriteObserver const unobserved;
  together(comm, [&] {
    ExtentWriter writer(written, unobserved, &edges, threads);
    reader.read(arrays, writer, threads, RecordReading::as_is, comm);
    written.sync(0);
    written.close();
  });
  auto const all = [](std::uint32_t) { return true; };
  out.publish(gathered_edges(&edges, 1, all, comm).front());
}

ExtractReport report(ArrayReader const& reader, ArrayFile const& arrays,
                     ExtractQuery const& query) {
  ExtractReport result;
  for (std::string const* note :
       {&reader.checkpoint().run.newer_saves, &reader.catalogue().listing.prefix_note})
    if (!note->empty()) result.notes.push_back(*note);
  Json rows = Json::array();
  std::uint64_t bytes = 0;
  bool parts = false;
  for (ChosenTensor const& tensor : arrays.tensors) {
    std::string axes;
    for (DomainAxis const& axis : tensor.axes)
      if (is_named(reader.axis_name(axis)))
        axes += fmt::format("{}{}", axes.empty() ? "  " : " · ", reader.axis_name(axis));
    int const add = reader.add_of(tensor);
    result.text += fmt::format("{:<8}  [{}]  {}{}{}\n", name(tensor.dtype),
                               fmt::join(tensor.shape, ", "), shown_name(tensor.name), axes,
                               add == 0 ? "" : fmt::format("  (stored: the value {:+})", add));
    Json shape = Json::array();
    for (Index const size : tensor.shape) shape.push(size);
    Json row;
    row.set("name", tensor.name).set("dtype", name(tensor.dtype)).set("shape", std::move(shape));
    rows.push(std::move(row));
    bytes += safetensors::tensor_bytes({tensor.name, tensor.dtype, tensor.shape});
    parts = parts || !tensor.part_of.empty();
  }
  if (parts) result.text += "quantised weights are their parts, as they are stored\n";
  result.text += fmt::format("{}: {}, {}\n", query.output.string(),
                             counted(arrays.tensors.size(), "tensor"), human_bytes(bytes));
  result.json.set("path", query.path.string())
      .set("format", reader.checkpoint().format->name())
      .set("map", reader.catalogue().map_name)
      .set("output", query.output.string())
      .set("bytes", bytes)
      .set("tensors", std::move(rows));
  return result;
}

/// Names that no logical tensor has may be those in the files, as `ls` and `diff` print them.
bool may_name_stored(Error const& refused, ArrayReader const& reader, ExtractQuery const& query) {
  return refused.kind() == ErrorKind::usage && query.map == "auto" && query.job == nullptr &&
         !reader.catalogue().stored_names;
}

}  // namespace

ExtractReport extract_tensors(ExtractQuery const& query, Comm const& comm) {
  if (!query.at.empty()) (void)parse_axis_indices(query.at);  // before anything is read
  HeadedCheckpoint const headed = open_headers(query, comm);
  together(comm, [&] {
    if (comm.rank() == 0) check_place(query, headed.checkpoint);
  });
  char const* const again = "run again when no program writes the checkpoint";
  std::optional<ArrayReader> reader(std::in_place, headed, query, again, comm);
  std::size_t const threads = rank_threads(comm);
  ArrayFile arrays;
  auto const lay_out = [&] {
    return capture([&] {
      arrays = reader->lay_out({query.patterns, query.at, {}, query.memory_bytes}, query.output,
                               threads);
    });
  };
  std::optional<Error> refused;
  together(comm, [&] {
    refused = lay_out();
    if (refused && !may_name_stored(*refused, *reader, query)) throw *refused;
  });
  if (refused) {  // the same on all ranks
    if (capture([&] { reader.emplace(headed, by_stored_names(query), again, comm); }))
      throw *refused;
    together(comm, [&] {
      if (lay_out()) throw *refused;
    });
  }
  write(*reader, arrays, query, threads, comm);
  return report(*reader, arrays, query);
}

}  // namespace reshard
