#include "core/containers/dcp/metadata/metadata_values.hpp"

#include <algorithm>

#include "core/base/text/json.hpp"

namespace reshard::dcp {
namespace {

constexpr std::string_view dcp_module = "torch.distributed.checkpoint.metadata";

/// A known class or function with its module.
struct KnownName {
  std::string_view name;
  std::string_view module;
  Known known;
};
constexpr KnownName known_names[] = {
    {"Metadata", dcp_module, Known::metadata},
    {"MCoreMetadata", "megatron.core.dist_checkpointing.strategies.torch", Known::metadata},
    {"TensorStorageMetadata", dcp_module, Known::tensor},
    {"ChunkStorageMetadata", dcp_module, Known::chunk},
    {"BytesStorageMetadata", dcp_module, Known::object},
    {"TensorProperties", dcp_module, Known::properties},
    {"TensorProperties", "torch.distributed._shard.sharded_tensor.metadata",
     Known::properties},  // until torch 2.2
    {"MetadataIndex", dcp_module, Known::index},
    {"_StorageInfo", "torch.distributed.checkpoint.filesystem", Known::place},
    {"Size", "torch", Known::size},
    {"_get_layout", "torch.serialization", Known::layout},
    {"OrderedDict", "collections", Known::dict},
    {"dict", "builtins", Known::dict},
    {"dict", "__builtin__", Known::dict},
};

Known known(std::string_view module, std::string_view name) {
  for (KnownName const& entry : known_names)
    if (entry.name == name && entry.module == module) return entry.known;
  return Known::nothing;
}

constexpr std::string_view word_texts[] = {
    "state_dict_metadata",
    "planner_data",
    "storage_data",
    "mcore_data",
    "all_local_plans",
    "properties",
    "size",
    "chunks",
    "offsets",
    "sizes",
    "fqn",
    "index",
    "offset",
    "relative_path",
    "length",
    "transform_descriptors",
    "nd_reformulated_orig_global_shape",
    "torch.strided",
};
static_assert(std::size(word_texts) == static_cast<std::size_t>(Word::count));

constexpr std::uint32_t last_generation = (1U << 24) - 1;
constexpr std::size_t largest_kept_values = 1024;

/// The beginning of a text for a message, without a cut inside a character.
std::string_view shortened(std::string_view text) {
  constexpr std::size_t longest = 300;
  if (text.size() <= longest) return text;
  std::size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace

std::string_view name_of(Tag tag) {
  switch (tag) {
    case Tag::unset: return "nothing";
    case Tag::none: return "None";
    case Tag::boolean: return "a bool";
    case Tag::integer:
    case Tag::big_integer: return "an int";
    case Tag::string: return "a str";
    case Tag::global: return "a class or function";
    case Tag::numbers: return "a tuple of ints";
    case Tag::numbers_tuple:
    case Tag::tuple: return "a tuple";
    case Tag::list: return "a list";
    case Tag::dict: return "a dict";
    case Tag::chunk: return "a ChunkStorageMetadata";
    case Tag::tensor: return "a TensorStorageMetadata";
    case Tag::object: return "a BytesStorageMetadata";
    case Tag::properties: return "a TensorProperties";
    case Tag::index: return "a MetadataIndex";
    case Tag::place: return "a _StorageInfo";
    case Tag::metadata: return "a Metadata";
    case Tag::layout: return "a torch.layout";
    case Tag::opaque: return "another object";
  }
  return "nothing";
}

std::uint32_t StringTable::add(std::string_view text) {
  std::uint64_t const hash = hash_of(text);
  std::uint32_t const found =
      table_.id(hash, [&](std::uint32_t id) { return (*this)[id] == text; });
  if (found != IdTable::none) return found;
  if (begin_.size() >= IdTable::none)
    fail(ErrorKind::resources, "more than {} different names cannot be held.", size());
  table_.make_room([this](std::uint32_t id) { return hash_of((*this)[id]); });
  std::uint32_t const id = size();
  bytes_ += text;
  begin_.push_back(bytes_.size());
  table_.add(hash, id);
  return id;
}

Value Containers::add(Tag tag) {
  if (free_.empty()) {
    if (slots_.size() >= IdTable::none)
      fail(ErrorKind::resources, "more than {} lists and dicts cannot be held.", slots_.size());
    slots_.emplace_back();
    free_.push_back(static_cast<std::uint32_t>(slots_.size() - 1));
  }
  std::uint32_t const slot = free_.back();
  free_.pop_back();
  return {tag, std::uint64_t{slots_[slot].generation} << 32 | slot};
}

std::vector<Value>* Containers::find(Value value) {
  Slot& slot = slots_[value.id()];
  return slot.generation == value.payload() >> 32 ? &slot.values : nullptr;
}

void Containers::consume(Value value) {
  Slot& slot = slots_[value.id()];
  if (slot.values.capacity() > largest_kept_values)
    slot.values = {};
  else
    slot.values.clear();
  // A slot whose generations are used up stays empty, so that a value never refers to a later
  // container.
  if (++slot.generation < last_generation) free_.push_back(value.id());
}

Records::Records() {
  for (std::string_view const text : word_texts) strings.add(text);
  lists.add({});
}

std::string Records::quoted(std::uint32_t string) const {
  return json_quoted(shortened(strings[string]));
}

std::string Records::class_name(std::uint32_t global) const {
  return json_quoted(fmt::format("{}.{}", shortened(strings[globals[global].module]),
                                 shortened(strings[globals[global].name])));
}

std::string Records::describe(Value value) const {
  if (value.tag() == Tag::global) return class_name(value.id());
  if (value.tag() == Tag::opaque && value.payload() > 0)
    return fmt::format("an object of {}", class_name(value.id() - 1));
  return std::string(name_of(value.tag()));
}

std::uint32_t Records::add_global(std::uint32_t module, std::uint32_t name) {
  auto const is_it = [&](std::uint32_t id) {
    return globals[id].module == module && globals[id].name == name;
  };
  std::uint64_t const hash = hash_of(module, name);
  std::uint32_t const found = globals_by_name.id(hash, is_it);
  if (found != IdTable::none) return found;
  globals_by_name.make_room(
      [this](std::uint32_t id) { return hash_of(globals[id].module, globals[id].name); });
  auto const id = narrow<std::uint32_t>(globals.size());
  globals.push_back(
      {.module = module, .name = name, .known = known(strings[module], strings[name])});
  globals_by_name.add(hash, id);
  return id;
}

Value Records::add_integer(std::int64_t number) {
  if (Value::fits(number)) return Value::integer(number);
  integers.push_back(number);
  return {Tag::big_integer, integers.size() - 1};
}

Value Records::add_tuple(std::span<Value const> items) {
  if (items.size() == 1 && items[0].tag() == Tag::numbers)
    return {Tag::numbers_tuple, items[0].payload()};
  if (auto const id = numbers(items)) return {Tag::numbers, *id};
  tuple_items.insert(tuple_items.end(), items.begin(), items.end());
  tuple_begin.push_back(tuple_items.size());
  return {Tag::tuple, tuple_begin.size() - 2};
}

std::span<Value const> Records::tuple(Value value) const {
  std::size_t const begin = tuple_begin[value.payload()];
  return std::span(tuple_items).subspan(begin, tuple_begin[value.payload() + 1] - begin);
}

std::optional<IndexLists::Id> Records::numbers(std::span<Value const> items) {
  scratch.resize(std::max(scratch.size(), items.size()));
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto const number = integer(items[i]);
    if (!number) return std::nullopt;
    scratch[i] = *number;
  }
  return lists.add(std::span(scratch).first(items.size()));
}

std::optional<IndexLists::Id> Records::numbers(Value value) {
  if (value.tag() == Tag::numbers) return value.id();
  if (value.tag() != Tag::list) return std::nullopt;
  std::vector<Value> const* const items = containers.find(value);
  return items == nullptr ? std::nullopt : numbers(std::span<Value const>(*items));
}

}  // namespace reshard::dcp
