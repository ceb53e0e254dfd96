// Headers of thousands of shards travel between ranks in one message each. Numbers are LEB128
// (signed ones zigzag first); a tensor's name states how many bytes it shares with the name before
// it.

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/error.hpp"
#include "core/formats/megatron/shard.hpp"

namespace reshard::megatron {
namespace {

constexpr std::string_view magic = "MSH1";
constexpr int deepest = 64;

enum class Tag : std::uint8_t { null, no, yes, integer, real, text, array, object };

class Packer {
 public:
  void number(std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) byte(static_cast<std::uint8_t>(value | 0x80U));
    byte(static_cast<std::uint8_t>(value));
  }
  void integer(std::int64_t value) {
    number((static_cast<std::uint64_t>(value) << 1U) ^ static_cast<std::uint64_t>(value >> 63));
  }
  void byte(std::uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void real(double value) { number(std::bit_cast<std::uint64_t>(value)); }
  void text(std::string_view value) {
    number(value.size());
    out_ += value;
  }
  void name(std::string_view value) {
    auto const [end, unused] =
        std::mismatch(value.begin(), value.end(), last_name_.begin(), last_name_.end());
    auto const shared = static_cast<std::size_t>(end - value.begin());
    number(shared);
    text(value.substr(shared));
    last_name_ = value;
  }
  void json(Json const& value) {
    if (value.is_null()) return tag(Tag::null);
    if (auto const* boolean = value.boolean()) return tag(*boolean ? Tag::yes : Tag::no);
    if (auto const* whole = value.integer()) return tag(Tag::integer), integer(*whole);
    if (auto const* fraction = value.real()) return tag(Tag::real), real(*fraction);
    if (auto const* word = value.text()) return tag(Tag::text), text(*word);
    if (auto const* items = value.items()) {
      tag(Tag::array);
      number(items->size());
      for (auto const& item : *items) json(item);
      return;
    }
    tag(Tag::object);
    number(value.members()->size());
    for (auto const& [key, member] : *value.members()) text(key), json(member);
  }
  void tensor(FileTensor const& tensor) {
    name(tensor.name);
    byte(static_cast<std::uint8_t>(tensor.dtype));
    indices(tensor.shape);
    indices(tensor.strides);
    number(tensor.offset_bytes);
    number(tensor.size_bytes);
  }
  std::string take() && { return std::move(out_); }

 private:
  void tag(Tag value) { byte(static_cast<std::uint8_t>(value)); }
  void indices(std::vector<Index> const& values) {
    number(values.size());
    for (Index const value : values) integer(value);
  }

  std::string out_{magic};
  std::string last_name_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {
    check(rest_.starts_with(magic), "its first bytes");
    rest_.remove_prefix(magic.size());
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      auto const part = byte();
      check(shift < 63 || part < 2, "a number");
      value |= static_cast<std::uint64_t>(part & 0x7fU) << shift;
      if (part < 0x80U) return value;
    }
    check(false, "a number");
    return 0;
  }
  std::int64_t integer() {
    auto const value = number();
    return static_cast<std::int64_t>((value >> 1U) ^ (~(value & 1U) + 1U));
  }
  std::uint8_t byte() {
    check(!rest_.empty(), "its length");
    auto const value = static_cast<std::uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  double real() { return std::bit_cast<double>(number()); }
  /// A count of things that take a byte each at least: so no count can ask for more memory than the
  /// message has bytes (times a small factor).
  std::size_t count() {
    auto const value = number();
    check(value <= rest_.size(), "a count");
    return static_cast<std::size_t>(value);
  }
  std::string text() {
    auto const size = count();
    std::string value(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return value;
  }
  std::string name() {
    auto const shared = number();
    check(shared <= last_name_.size(), "a name");
    last_name_.resize(static_cast<std::size_t>(shared));
    last_name_ += text();
    return last_name_;
  }
  Json json(int depth = 0) {
    check(depth < deepest, "its depth");
    switch (static_cast<Tag>(byte())) {
      case Tag::null: return {};
      case Tag::no: return Json(false);
      case Tag::yes: return Json(true);
      case Tag::integer: return Json(integer());
      case Tag::real: return Json(real());
      case Tag::text: return Json(text());
      case Tag::array: return array(depth);
      case Tag::object: return object(depth);
    }
    check(false, "a tag");
    return {};
  }
  FileTensor tensor() {
    FileTensor result;
    result.name = name();
    result.dtype = static_cast<DType>(enumerator(static_cast<std::uint8_t>(last_dtype)));
    result.shape = indices();
    result.strides = indices();
    result.offset_bytes = number();
    result.size_bytes = number();
    return result;
  }
  std::uint8_t enumerator(std::uint8_t last) {
    auto const value = byte();
    check(value <= last, "an enum");
    return value;
  }
  void finish() const { check(rest_.empty(), "its length"); }

 private:
  static void check(bool good, std::string_view what) {
    if (!good) fail(ErrorKind::internal, "packed shard header: {} is not what pack() writes", what);
  }
  Json array(int depth) {
    Json::Array items;
    for (auto left = count(); left > 0; --left) items.push_back(json(depth + 1));
    return Json(std::move(items));
  }
  Json object(int depth) {
    Json::Object members;
    for (auto left = count(); left > 0; --left) {
      auto key = text();
      members.emplace_back(std::move(key), json(depth + 1));
    }
    return Json(std::move(members));
  }
  std::vector<Index> indices() {
    std::vector<Index> values;
    for (auto left = count(); left > 0; --left) values.push_back(integer());
    return values;
  }

  std::string_view rest_;
  std::string last_name_;
};

void pack_chunk(Packer& packer, ChunkTable const& chunk) {
  packer.number(chunk.tensors.size());
  for (auto const& tensor : chunk.tensors) packer.tensor(tensor);
  packer.number(chunk.extras.size());
  for (auto const& extra : chunk.extras) {
    packer.name(extra.key);
    packer.byte(static_cast<std::uint8_t>(extra.kind));
    packer.number(extra.tensors_before);
    packer.number(extra.size_bytes);
    if (extra.kind == ExtraKind::uint8_tensor) packer.tensor(extra.tensor);
  }
}

ChunkTable unpack_chunk(Unpacker& unpacker) {
  ChunkTable chunk;
  for (auto left = unpacker.count(); left > 0; --left) chunk.tensors.push_back(unpacker.tensor());
  for (auto left = unpacker.count(); left > 0; --left) {
    ExtraEntry extra;
    extra.key = unpacker.name();
    extra.kind =
        static_cast<ExtraKind>(unpacker.enumerator(static_cast<std::uint8_t>(ExtraKind::other)));
    extra.tensors_before = static_cast<std::uint32_t>(unpacker.number());
    extra.size_bytes = unpacker.number();
    if (extra.kind == ExtraKind::uint8_tensor) extra.tensor = unpacker.tensor();
    chunk.extras.push_back(std::move(extra));
  }
  return chunk;
}

void pack_texts(Packer& packer, std::vector<std::string> const& texts) {
  packer.number(texts.size());
  for (auto const& text : texts) packer.text(text);
}

/// Places count from the end of the record before.
void pack_records(Packer& packer, std::vector<StorageRecord> const& records) {
  packer.number(records.size());
  std::uint64_t end = 0;
  for (StorageRecord const& record : records) {
    packer.integer(static_cast<std::int64_t>(record.offset_bytes - end));
    packer.number(record.size_bytes);
    packer.number(record.crc32.value_or(0));
    end = record.offset_bytes + record.size_bytes;
  }
}

std::vector<StorageRecord> unpack_records(Unpacker& unpacker) {
  std::vector<StorageRecord> records;
  std::uint64_t end = 0;
  for (auto left = unpacker.count(); left > 0; --left) {
    StorageRecord record;
    record.offset_bytes = end + static_cast<std::uint64_t>(unpacker.integer());
    record.size_bytes = unpacker.number();
    record.crc32 = static_cast<std::uint32_t>(unpacker.number());
    end = record.offset_bytes + record.size_bytes;
    records.push_back(record);
  }
  return records;
}

std::vector<std::string> unpack_texts(Unpacker& unpacker) {
  std::vector<std::string> texts;
  for (auto left = unpacker.count(); left > 0; --left) texts.push_back(unpacker.text());
  return texts;
}

}  // namespace

std::string pack(ShardHeader const& header) {
  Packer packer;
  packer.json(header.args);
  packer.real(header.checkpoint_version);
  packer.integer(header.iteration);
  packer.number(header.chunks.size());
  for (auto const& chunk : header.chunks) pack_chunk(packer, chunk);
  packer.byte(header.has_optimizer ? 1 : 0);
  packer.byte(header.has_rng ? 1 : 0);
  pack_texts(packer, header.other_keys);
  pack_texts(packer, header.unplaced);
  pack_records(packer, header.records);
  packer.number(header.file_bytes);
  packer.number(header.mtime_ns);
  return std::move(packer).take();
}

ShardHeader unpack(std::string_view bytes) {
  Unpacker unpacker(bytes);
  ShardHeader header;
  header.args = unpacker.json();
  header.checkpoint_version = unpacker.real();
  header.iteration = unpacker.integer();
  for (auto left = unpacker.count(); left > 0; --left)
    header.chunks.push_back(unpack_chunk(unpacker));
  header.has_optimizer = unpacker.enumerator(1) == 1;
  header.has_rng = unpacker.enumerator(1) == 1;
  header.other_keys = unpack_texts(unpacker);
  header.unplaced = unpack_texts(unpacker);
  header.records = unpack_records(unpacker);
  header.file_bytes = unpacker.number();
  header.mtime_ns = unpacker.number();
  unpacker.finish();
  return header;
}

}  // namespace reshard::megatron
