// Serialised headers of thousands of shards, for messages between ranks. Common parts are sent
// once. A tensor's name begins with the number of bytes that it shares with the previous name.

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/text/wire.hpp"
#include "core/formats/megatron/headers/shard.hpp"

namespace reshard::megatron {
namespace {

constexpr std::string_view magic = "MSH2";
constexpr std::string_view what = "packed shard header";
constexpr int deepest = 64;

enum class Tag : std::uint8_t { null, no, yes, integer, real, text, array, object };

class Packer {
 public:
  WireWriter& out() { return out_; }
  void name(std::string_view value) {
    auto const [end, unused] =
        std::mismatch(value.begin(), value.end(), last_name_.begin(), last_name_.end());
    auto const shared = static_cast<std::size_t>(end - value.begin());
    out_.number(shared).text(value.substr(shared));
    last_name_ = value;
  }
  void json(Json const& value) {
    if (value.is_null()) return tag(Tag::null);
    if (auto const* boolean = value.boolean()) return tag(*boolean ? Tag::yes : Tag::no);
    if (auto const* whole = value.integer()) return tag(Tag::integer), void(out_.integer(*whole));
    if (auto const* fraction = value.real()) return tag(Tag::real), void(out_.put(*fraction));
    if (auto const* word = value.text()) return tag(Tag::text), void(out_.text(*word));
    if (auto const* items = value.items()) {
      tag(Tag::array);
      out_.number(items->size());
      for (auto const& item : *items) json(item);
      return;
    }
    tag(Tag::object);
    out_.number(value.members()->size());
    for (auto const& [key, member] : *value.members()) out_.text(key), json(member);
  }
  void tensor(FileTensor const& tensor) {
    name(tensor.name);
    out_.byte(static_cast<std::uint8_t>(tensor.dtype)).put(tensor.shape).put(tensor.strides);
    out_.number(tensor.offset_bytes).number(tensor.size_bytes);
  }

 private:
  void tag(Tag value) { out_.byte(static_cast<std::uint8_t>(value)); }

  WireWriter out_;
  std::string last_name_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : in_(bytes, what) {}
  WireReader& in() { return in_; }
  std::string name() {
    last_name_.resize(in_.number_up_to(last_name_.size()));
    last_name_ += in_.text();
    return last_name_;
  }
  Json json(int depth = 0) {
    if (depth >= deepest) in_.spoil();
    switch (static_cast<Tag>(in_.byte())) {
      case Tag::null: return {};
      case Tag::no: return Json(false);
      case Tag::yes: return Json(true);
      case Tag::integer: return Json(in_.integer());
      case Tag::real: return Json(in_.get<double>());
      case Tag::text: return Json(in_.get<std::string>());
      case Tag::array: return array(depth);
      case Tag::object: return object(depth);
    }
    in_.spoil();
    return {};
  }
  FileTensor tensor() {
    FileTensor result;
    result.name = name();
    result.dtype = static_cast<DType>(enumerator(static_cast<std::uint8_t>(last_dtype)));
    result.shape = in_.get<std::vector<Index>>();
    result.strides = in_.get<std::vector<Index>>();
    result.offset_bytes = in_.number();
    result.size_bytes = in_.number();
    return result;
  }
  std::uint8_t enumerator(std::uint8_t last) {
    std::uint8_t const value = in_.byte();
    if (value > last) in_.spoil();
    return in_.good() ? value : std::uint8_t{0};
  }

 private:
  Json array(int depth) {
    Json::Array items;
    for (auto left = in_.count(); left > 0 && in_.good(); --left) items.push_back(json(depth + 1));
    return Json(std::move(items));
  }
  Json object(int depth) {
    Json::Object members;
    for (auto left = in_.count(); left > 0 && in_.good(); --left) {
      auto key = in_.get<std::string>();
      members.emplace_back(std::move(key), json(depth + 1));
    }
    return Json(std::move(members));
  }

  WireReader in_;
  std::string last_name_;
};

void pack_chunk(Packer& packer, ChunkTable const& chunk) {
  packer.out().number(chunk.tensors.size());
  for (auto const& tensor : chunk.tensors) packer.tensor(tensor);
  packer.out().number(chunk.extras.size());
  for (auto const& extra : chunk.extras) {
    packer.name(extra.key);
    packer.out().byte(static_cast<std::uint8_t>(extra.kind));
    packer.out().number(extra.tensors_before).number(extra.size_bytes);
    if (extra.kind == ExtraKind::uint8_tensor) packer.tensor(extra.tensor);
  }
}

ChunkTable unpack_chunk(Unpacker& unpacker) {
  WireReader& in = unpacker.in();
  ChunkTable chunk;
  for (auto left = in.count(); left > 0 && in.good(); --left)
    chunk.tensors.push_back(unpacker.tensor());
  for (auto left = in.count(); left > 0 && in.good(); --left) {
    ExtraEntry extra;
    extra.key = unpacker.name();
    extra.kind =
        static_cast<ExtraKind>(unpacker.enumerator(static_cast<std::uint8_t>(ExtraKind::other)));
    extra.tensors_before = in.get<std::uint32_t>();
    extra.size_bytes = in.number();
    if (extra.kind == ExtraKind::uint8_tensor) extra.tensor = unpacker.tensor();
    chunk.extras.push_back(std::move(extra));
  }
  return chunk;
}

/// Places count from the end of the record before.
void pack_places(WireWriter& out, std::vector<StorageRecord> const& records) {
  out.number(records.size());
  std::uint64_t end = 0;
  for (StorageRecord const& record : records) {
    out.integer(static_cast<std::int64_t>(record.offset_bytes - end)).number(record.size_bytes);
    end = record.offset_bytes + record.size_bytes;
  }
}

std::vector<StorageRecord> unpack_places(WireReader& in) {
  std::vector<StorageRecord> records;
  std::uint64_t end = 0;
  for (auto left = in.count(); left > 0 && in.good(); --left) {
    StorageRecord record;
    record.offset_bytes = end + static_cast<std::uint64_t>(in.integer());
    record.size_bytes = in.number();
    end = record.offset_bytes + record.size_bytes;
    records.push_back(record);
  }
  return records;
}

}  // namespace

PackedHeader pack(ShardHeader const& header) {
  Packer args;
  args.json(header.args);
  Packer packer;
  WireWriter& out = packer.out();
  out.raw(magic).put(header.checkpoint_version).integer(header.iteration);
  out.number(header.chunks.size());
  for (auto const& chunk : header.chunks) pack_chunk(packer, chunk);
  out.put(header.has_optimizer).put(header.has_rng);
  out.put(header.other_keys).put(header.unplaced);
  pack_places(out, header.records);
  return {std::move(args.out()).take(), std::move(out).take()};
}

Json unpack_args(std::string_view bytes) {
  Unpacker unpacker(bytes);
  Json args = unpacker.json();
  unpacker.in().finish();
  return args;
}

ShardHeader unpack_common(std::string_view bytes) {
  Unpacker unpacker(bytes);
  WireReader& in = unpacker.in();
  if (in.raw(magic.size()) != magic) in.spoil();
  in.check();
  ShardHeader header;
  header.checkpoint_version = in.get<double>();
  header.iteration = in.integer();
  for (auto left = in.count(); left > 0 && in.good(); --left)
    header.chunks.push_back(unpack_chunk(unpacker));
  header.has_optimizer = in.get<bool>();
  header.has_rng = in.get<bool>();
  header.other_keys = in.get<std::vector<std::string>>();
  header.unplaced = in.get<std::vector<std::string>>();
  header.records = unpack_places(in);
  in.finish();
  return header;
}

}  // namespace reshard::megatron
