#include "core/containers/torch/torch_file.hpp"

#include <algorithm>

#include "core/base/hash/crc32.hpp"
#include "core/base/text/json.hpp"
#include "core/containers/torch/file_kind.hpp"
#include "core/containers/torch/legacy_container.hpp"
#include "core/containers/torch/pickle/pickle_builder.hpp"
#include "core/containers/torch/pickle/pickle_graph.hpp"
#include "core/containers/torch/storage_check.hpp"
#include "core/containers/torch/torch_limits.hpp"
#include "core/containers/torch/zip/zip_directory.hpp"

namespace reshard {
namespace {

constexpr std::size_t beginning_bytes = 512;
constexpr std::uint64_t largest_small_record_bytes = 64;

/// The records of the folder the first record is in, which is where torch looks.
class ZipTorchReader {
 public:
  explicit ZipTorchReader(FileRange const& file)
      : file_(file), entries_(zip::read_directory(file)) {
    if (entries_.empty()) unsuitable("the zip archive is empty");
    std::string const& first = entries_.front().name;
    folder_ = first.substr(0, first.find('/') + 1);
  }

  TorchFile read() {
    if (find("constants.pkl") != nullptr)
      unsuitable(
          "it is a TorchScript archive, which holds code. Save the module's state_dict() with torch.save");
    zip::Entry const* const pickle = find("data.pkl");
    if (folder_.empty() || pickle == nullptr)
      unsuitable("a zip archive without a record '<folder>/data.pkl' is not from torch.save");
    check_version();
    check_byte_order();
    TorchFile result{.container = TorchFile::Container::zip,
                     .archive = folder_.substr(0, folder_.size() - 1),
                     .document = read_pickle(*pickle),
                     .storages = {}};
    std::string const prefix = folder_ + "data/";
    result.storages.reserve(entries_.size());
    for (zip::Entry const& entry : entries_) {
      if (!entry.name.starts_with(prefix) || entry.name.size() == prefix.size()) continue;
      // torch writes zero in every record when set not to compute CRCs.
      bool const has_crc = entry.crc32 != 0 || entry.size_bytes == 0;
      result.storages.emplace(
          entry.name.substr(prefix.size()),
          StorageRecord{.offset_bytes = file_.offset_bytes() + entry.payload_offset_bytes,
                        .size_bytes = entry.size_bytes,
                        .crc32 = has_crc ? std::optional(entry.crc32) : std::nullopt});
    }
    return result;
  }

 private:
  [[noreturn]] void unsuitable(std::string_view why) const {
    fail(ErrorKind::source, "{}: {}.", file_.name(), why);
  }

  zip::Entry const* find(std::string_view name) const {
    auto const found = std::ranges::find_if(entries_, [&](zip::Entry const& entry) {
      std::string_view const whole = entry.name;
      return whole.starts_with(folder_) && whole.substr(folder_.size()) == name;
    });
    return found == entries_.end() ? nullptr : &*found;
  }

  std::string payload(zip::Entry const& entry, std::uint64_t limit) const {
    if (entry.size_bytes > limit)
      fail(ErrorKind::source, "{}: record {} has {}, at most {} are read. The file is damaged.",
           file_.name(), json_quoted(entry.name), human_bytes(entry.size_bytes),
           human_bytes(limit));
    std::string bytes(entry.size_bytes, '\0');
    file_.read_at(entry.payload_offset_bytes, std::as_writable_bytes(std::span(bytes)));
    std::uint32_t const crc = crc32(std::as_bytes(std::span(bytes)));
    if (entry.crc32 != 0 && crc != entry.crc32)
      fail(
          ErrorKind::source,
          "{}: record {} has CRC 0x{:08x}, expected 0x{:08x}. The file is damaged: fetch it again.",
          file_.name(), json_quoted(entry.name), crc, entry.crc32);
    return bytes;
  }

  void check_version() const {
    zip::Entry const* entry = find("version");
    if (entry == nullptr) entry = find(".data/version");
    if (entry == nullptr) unsuitable("it has no record 'version', so it is not from torch.save");
    std::string const text = payload(*entry, largest_small_record_bytes);
    std::string_view digits = text;
    while (digits.ends_with('\n')) digits.remove_suffix(1);
    if (digits.empty() || digits.size() > 2 ||
        digits.find_first_not_of("0123456789") != std::string_view::npos ||
        std::stoi(std::string(digits)) > 10 || std::stoi(std::string(digits)) < 1)
      unsuitable(
          fmt::format("its version is {}, expected 1 to 10. Save it with a known version of torch",
                      json_quoted(text)));
  }

  void check_byte_order() const {
    zip::Entry const* const entry = find("byteorder");
    if (entry == nullptr) return;  // older than the record; those machines were little-endian
    std::string const order = payload(*entry, largest_small_record_bytes);
    if (order != "little")
      unsuitable(fmt::format(
          "its byte order is {}, expected \"little\". Load and save it with torch on a little-endian machine",
          json_quoted(order)));
  }

  pickle::Document read_pickle(zip::Entry const& entry) const {
    std::string const bytes = payload(entry, largest_pickle_bytes);
    std::string const place = fmt::format("{}: {}", file_.name(), entry.name);
    std::size_t consumed = 0;
    pickle::Document document = pickle::parse(std::as_bytes(std::span(bytes)), place, &consumed);
    if (consumed != bytes.size())
      fail(ErrorKind::source,
           "{}: {} bytes follow the end of the pickle at {}. The file is damaged.", place,
           bytes.size() - consumed, consumed);
    return document;
  }

  FileRange const& file_;
  std::vector<zip::Entry> entries_;
  std::string folder_;
};

StorageRecord const& record_of(FileRange const& file, TorchFile const& torch,
                               std::string const& key) {
  auto const found = torch.storages.find(key);
  if (found == torch.storages.end())
    fail(ErrorKind::source,
         "{}: storage {}: the pickle refers to it, the file has no such storage. {}", file.name(),
         json_quoted(key), damaged_storage_advice);
  return found->second;
}

}  // namespace

TorchFile read_torch_file(FileRange const& file) {
  std::vector<std::byte> beginning(beginning_bytes);
  beginning.resize(file.read_some_at(0, beginning));
  std::string_view const text(reinterpret_cast<char const*>(beginning.data()), beginning.size());
  TorchFile result;
  if (text.starts_with("PK"))
    result = ZipTorchReader(file).read();
  else if (std::size_t const magic_bytes = legacy::magic_bytes(beginning); magic_bytes != 0)
    result = legacy::read(file, magic_bytes);
  else
    fail(ErrorKind::source, "{}: expected a file of torch.save, found {}.", file.name(),
         file_kind(beginning));
  for (pickle::StorageRef const& storage : result.document.storages)
    expect_right_size(file, storage, record_of(file, result, storage.key));
  for (pickle::TensorRef const& tensor : result.document.tensors)
    expect_inside(file, tensor, record_of(file, result, tensor.storage.key));
  return result;
}

FileTensor file_tensor(TorchFile const& file, pickle::TensorRef const& tensor, std::string name) {
  auto const found = file.storages.find(tensor.storage.key);
  RESHARD_EXPECT(found != file.storages.end());
  return storage_tensor(found->second, tensor, std::move(name));
}

}  // namespace reshard
