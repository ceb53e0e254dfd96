#include "core/containers/torch/legacy_container.hpp"

#include <algorithm>
#include <array>

#include "core/base/text/json.hpp"
#include "core/containers/torch/little_endian.hpp"
#include "core/containers/torch/pickle/pickle_builder.hpp"
#include "core/containers/torch/torch_limits.hpp"

namespace reshard::legacy {
namespace {

/// 0x1950a86a20f9469cfc6c, as an integer of a pickle has it.
constexpr std::string_view magic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr std::int64_t protocol = 1001;
constexpr std::size_t first_window_bytes = 1 << 20;

class LegacyReader {
 public:
  LegacyReader(FileRange const& file, std::size_t magic_bytes)
      : file_(file), size_bytes_(file.size_bytes()), at_(magic_bytes) {}

  TorchFile read() {
    check_protocol(next_pickle("protocol number"));
    check_machine(next_pickle("system information"));
    TorchFile result{.container = TorchFile::Container::legacy,
                     .document = next_pickle("object"),
                     .storages = {}};
    pickle::Document const keys = next_pickle("list of storage keys");
    std::unordered_map<std::string_view, pickle::StorageRef const*> const known =
        storages_by_key(result.document);
    if (keys.at(keys.root).kind != pickle::Kind::list)
      damaged("the list of storage keys is a {}, expected a list.",
              pickle::kind_name(keys.at(keys.root).kind));
    for (pickle::NodeId const id : keys.at(keys.root).items) {
      if (keys.at(id).kind != pickle::Kind::string)
        damaged("a storage key is a {}, expected a str.", pickle::kind_name(keys.at(id).kind));
      auto const found = known.find(keys.at(id).text);
      if (found == known.end())
        damaged(
            "the storage {} is listed, but nothing refers to it, so its element size is unknown.",
            json_quoted(keys.at(id).text));
      add_storage(result, *found->second);
    }
    if (at_ != size_bytes_)
      damaged("its last storage ends at {}, the file has {} bytes.", at_, size_bytes_);
    return result;
  }

 private:
  template <class... Args>
  [[noreturn]] void damaged(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::source,
         "{}: torch file in the format before 1.6: {} The file is truncated or damaged: compare "
         "its size with the original.",
         file_.name(), fmt::format(format, std::forward<Args>(args)...));
  }

  /// The pickle at at_, which moves past it. Its size is not written anywhere: read more until it
  /// is complete.
  pickle::Document next_pickle(std::string_view what) {
    std::string const place = fmt::format("{}: {} at offset {}", file_.name(), what, at_);
    for (std::size_t window = first_window_bytes;; window *= 4) {
      std::uint64_t const left = size_bytes_ - at_;
      bool const last = window >= std::min(left, largest_pickle_bytes);
      std::vector<std::byte> bytes(std::min<std::uint64_t>({window, left, largest_pickle_bytes}));
      file_.read_at(at_, bytes);
      std::size_t consumed = 0;
      try {
        pickle::Document document = last ? pickle::parse(bytes, place, &consumed)
                                         : pickle::parse_prefix(bytes, place, &consumed, {});
        at_ += consumed;
        return document;
      } catch (pickle::EndOfBytes const&) {
        // The window was too small.
      }
    }
  }

  void check_protocol(pickle::Document const& number) const {
    pickle::Node const& node = number.at(number.root);
    if (node.kind != pickle::Kind::integer || node.integer != protocol)
      damaged("its protocol is {}, expected {}.", node.integer, protocol);
  }

  void check_machine(pickle::Document const& info) const {
    pickle::NodeId const little = info.find(info.root, "little_endian");
    if (little == pickle::no_node || info.at(little).kind != pickle::Kind::boolean)
      damaged("it does not state whether its numbers are little-endian.");
    if (!info.at(little).boolean)
      fail(
          ErrorKind::source,
          "{}: written on a big-endian machine, expected little-endian. Load and save it with torch on a little-endian one.",
          file_.name());
  }

  /// One class and one size per key, or the bytes of the storage would be a matter of opinion.
  std::unordered_map<std::string_view, pickle::StorageRef const*> storages_by_key(
      pickle::Document const& document) const {
    std::unordered_map<std::string_view, pickle::StorageRef const*> known;
    for (pickle::StorageRef const& storage : document.storages) {
      pickle::StorageRef const& first = *known.emplace(storage.key, &storage).first->second;
      if (first.dtype != storage.dtype || first.untyped != storage.untyped ||
          first.count != storage.count)
        damaged("the storage {} is given with {} {} and with {} {}.", json_quoted(storage.key),
                first.count, name(first.dtype), storage.count, name(storage.dtype));
    }
    return known;
  }

  /// An int64 count of elements, then their bytes.
  void add_storage(TorchFile& result, pickle::StorageRef const& storage) {
    std::array<std::byte, 8> bytes;
    std::string const key = json_quoted(storage.key);
    if (size_bytes_ - at_ < bytes.size())
      damaged("the storage {} would begin at {}, the file has {} bytes.", key, at_, size_bytes_);
    file_.read_at(at_, bytes);
    at_ += bytes.size();
    auto const count = load_little_endian<std::uint64_t>(bytes);
    if (count != storage.count)
      damaged("the storage {} has {} elements, but its tensors give it {}.", key, count,
              storage.count);
    std::uint64_t const unit = static_cast<std::uint64_t>(bits(storage.dtype)) / 8;
    if (count > (size_bytes_ - at_) / unit)
      damaged("the storage {} has {} elements of {} bytes at {}, the file has {} bytes.", key,
              count, unit, at_, size_bytes_);
    StorageRecord const record{
        .offset_bytes = file_.offset_bytes() + at_, .size_bytes = count * unit, .crc32 = {}};
    if (!result.storages.emplace(storage.key, record).second)
      damaged("the storage {} is listed twice.", key);
    at_ += record.size_bytes;
  }

  FileRange const& file_;
  std::uint64_t size_bytes_;
  std::uint64_t at_;
};

}  // namespace

std::size_t magic_bytes(std::span<std::byte const> beginning) {
  if (beginning.size() < magic.size()) return 0;
  try {
    std::size_t consumed = 0;
    pickle::Document const number =
        pickle::parse_prefix(beginning, "", &consumed, {.largest_nodes = 1});
    pickle::Node const& node = number.at(number.root);
    return node.kind == pickle::Kind::big_integer && node.text == magic ? consumed : 0;
  } catch (pickle::EndOfBytes const&) {
    return 0;
  } catch (Error const&) {
    return 0;  // no pickle, or another one
  }
}

TorchFile read(FileRange const& file, std::size_t magic_bytes) {
  return LegacyReader(file, magic_bytes).read();
}

}  // namespace reshard::legacy
