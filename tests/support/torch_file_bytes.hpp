#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/containers/torch/little_endian.hpp"
#include "core/containers/torch/torch_file.hpp"

/// Torch files made byte by byte, right or wrong on purpose.
namespace reshard {

/// A file that lives in memory and can take new content again and again.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("torch_file", MFD_CLOEXEC)) {
    RESHARD_EXPECT(descriptor_ >= 0);
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(MemoryFile const&) = delete;
  MemoryFile& operator=(MemoryFile const&) = delete;

  File holding(std::string_view bytes) const {
    std::string const path = fmt::format("/proc/self/fd/{}", descriptor_);
    File file = File::open_for_writing(path);
    file.resize(0);
    file.write_at(0, std::as_bytes(std::span(bytes)));
    file.close();
    return File::open_for_reading(path);
  }

 private:
  int descriptor_;
};

inline pickle::Document parse(std::string_view pickle) {
  return pickle::parse(std::as_bytes(std::span(pickle)), "test");
}

/// The Error that reading these bytes as a torch file ends in, or nothing.
inline std::optional<Error> error_of_file(MemoryFile const& memory, std::string_view bytes) {
  try {
    read_torch_file(memory.holding(bytes));
  } catch (Error const& error) {
    return error;
  }
  return std::nullopt;
}

inline std::optional<Error> error_of_pickle(std::string_view bytes) {
  try {
    parse(bytes);
  } catch (Error const& error) {
    return error;
  }
  return std::nullopt;
}

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  append_little_endian(bytes, value);
  return bytes;
}

// Pieces of pickles.

inline std::string pickled_string(std::string_view text) {
  return "X" + little_endian(static_cast<std::uint32_t>(text.size())) + std::string(text);
}
inline std::string pickled_int(std::int64_t value) {
  return "\x8a\x08" + little_endian(static_cast<std::uint64_t>(value));
}
inline std::string pickled_tuple(std::vector<std::int64_t> const& values) {
  std::string bytes = "(";
  for (std::int64_t const value : values) bytes += pickled_int(value);
  return bytes + "t";
}

/// What a tensor's pickle says; the defaults are the tensor of a file with one storage of 4 floats.
struct PickledTensor {
  std::string storage_class = "torch\nFloatStorage";
  std::string key = "0";
  std::int64_t count = 4;
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape = {2, 2};
  std::vector<std::int64_t> strides = {2, 1};
  std::string function = "torch._utils\n_rebuild_tensor_v2";
  std::string last_arguments =
      "\x89"
      "ccollections\nOrderedDict\n)R";
};

inline std::string pickled_storage(PickledTensor const& tensor) {
  return "(" + pickled_string("storage") + "c" + tensor.storage_class + "\n" +
         pickled_string(tensor.key) + pickled_string("cpu") + pickled_int(tensor.count) + "tQ";
}

inline std::string pickled_tensor(PickledTensor const& tensor) {
  return "c" + tensor.function + "\n(" + pickled_storage(tensor) + pickled_int(tensor.offset) +
         pickled_tuple(tensor.shape) + pickled_tuple(tensor.strides) + tensor.last_arguments + "tR";
}

inline std::string pickle_of(std::string_view body) { return "\x80\x02" + std::string(body) + "."; }

// Zip archives.

/// A record and what its two headers say of it. Absent values are the true ones.
struct RawEntry {
  std::string name{};
  std::string payload{};
  std::optional<std::string> local_name{};
  std::uint16_t flags = 0x0800;
  std::optional<std::uint16_t> local_flags{};
  std::uint16_t method = 0;
  std::uint16_t local_method = 0;
  std::optional<std::uint32_t> crc{};
  std::optional<std::uint32_t> local_crc{};
  std::optional<std::uint32_t> size{};         ///< uncompressed, in the directory
  std::optional<std::uint32_t> stored_size{};  ///< compressed, in the directory
  std::optional<std::uint32_t> local_size{};
  std::optional<std::uint32_t> header_offset{};
  std::uint16_t disk = 0;
  std::string central_extra{};
  std::string local_extra{};
  std::string comment{};
  std::string descriptor{};  ///< after the payload
  std::string gap{};         ///< after that
};

struct RawZip {
  std::vector<RawEntry> entries;
  std::string before{};  ///< in front of everything; offsets do not count it
  std::string end64{};   ///< between directory and end record
  std::optional<std::uint16_t> count{};
  std::optional<std::uint16_t> count_here{};
  std::optional<std::uint32_t> directory_offset{};
  std::optional<std::uint32_t> directory_size{};
  std::uint16_t disk = 0;
  std::string comment{};
  std::optional<std::uint16_t> comment_size{};
  std::string after{};
};

inline std::string local_header(RawEntry const& entry) {
  std::string const name = entry.local_name.value_or(entry.name);
  auto const size = entry.local_size.value_or(static_cast<std::uint32_t>(entry.payload.size()));
  std::uint32_t const crc = crc32(std::as_bytes(std::span(entry.payload)));
  return "PK\3\4" + little_endian(std::uint16_t{20}) +
         little_endian(entry.local_flags.value_or(entry.flags)) +
         little_endian(entry.local_method) + little_endian(std::uint32_t{0}) +
         little_endian(entry.local_crc.value_or(crc)) + little_endian(size) + little_endian(size) +
         little_endian(static_cast<std::uint16_t>(name.size())) +
         little_endian(static_cast<std::uint16_t>(entry.local_extra.size())) + name +
         entry.local_extra;
}

inline std::string central_header(RawEntry const& entry, std::uint32_t offset) {
  auto const size = static_cast<std::uint32_t>(entry.payload.size());
  std::uint32_t const crc = crc32(std::as_bytes(std::span(entry.payload)));
  return "PK\1\2" + little_endian(std::uint16_t{20}) + little_endian(std::uint16_t{20}) +
         little_endian(entry.flags) + little_endian(entry.method) +
         little_endian(std::uint32_t{0}) + little_endian(entry.crc.value_or(crc)) +
         little_endian(entry.stored_size.value_or(size)) +
         little_endian(entry.size.value_or(size)) +
         little_endian(static_cast<std::uint16_t>(entry.name.size())) +
         little_endian(static_cast<std::uint16_t>(entry.central_extra.size())) +
         little_endian(static_cast<std::uint16_t>(entry.comment.size())) +
         little_endian(entry.disk) + little_endian(std::uint16_t{0}) +
         little_endian(std::uint32_t{0}) + little_endian(entry.header_offset.value_or(offset)) +
         entry.name + entry.central_extra + entry.comment;
}

inline std::string bytes_of(RawZip const& zip) {
  std::string bytes;
  std::string directory;
  for (RawEntry const& entry : zip.entries) {
    directory += central_header(entry, static_cast<std::uint32_t>(bytes.size()));
    bytes += local_header(entry) + entry.payload + entry.descriptor + entry.gap;
  }
  auto const count = static_cast<std::uint16_t>(zip.entries.size());
  std::string const end =
      "PK\5\6" + little_endian(zip.disk) + little_endian(zip.disk) +
      little_endian(zip.count_here.value_or(zip.count.value_or(count))) +
      little_endian(zip.count.value_or(count)) +
      little_endian(zip.directory_size.value_or(static_cast<std::uint32_t>(directory.size()))) +
      little_endian(zip.directory_offset.value_or(static_cast<std::uint32_t>(bytes.size()))) +
      little_endian(zip.comment_size.value_or(static_cast<std::uint16_t>(zip.comment.size()))) +
      zip.comment;
  return zip.before + bytes + directory + zip.end64 + end + zip.after;
}

/// A right archive with one tensor of 2 x 2 floats, or with this pickle.
inline RawZip torch_zip(std::string pickle = pickle_of(pickled_tensor({}))) {
  return {.entries = {{.name = "m/data.pkl", .payload = std::move(pickle)},
                      {.name = "m/byteorder", .payload = "little"},
                      {.name = "m/data/0", .payload = std::string(16, '\x3f')},
                      {.name = "m/version", .payload = "3\n"}}};
}

/// The file before 1.6 with the same tensor.
struct RawLegacy {
  std::string magic = std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
  std::string protocol = pickle_of(pickled_int(1001));
  std::string machine = pickle_of("}" + pickled_string("little_endian") + "\x88s");
  std::string object = pickle_of(pickled_tensor({}));
  std::string keys = pickle_of("](" + pickled_string("0") + "e");
  std::string storages = little_endian(std::uint64_t{4}) + std::string(16, '\x3f');
};

inline std::string bytes_of(RawLegacy const& file) {
  return file.magic + file.protocol + file.machine + file.object + file.keys + file.storages;
}

/// What a damaged file is refused with: `says` is part of the sentence.
template <class Raw>
struct Damage {
  char const* name;
  std::function<void(Raw&)> make;
  char const* says;
};

}  // namespace reshard
