#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/containers/dcp/metadata/metadata.hpp"

/// The values of the pickle of a `.metadata` file while it is read: eight bytes each, with numbers
/// of records in tables.
namespace reshard::dcp {

enum class Tag : std::uint8_t {
  unset,          ///< no value: a free place of the memo
  none,           ///< None
  boolean,        ///< payload 0 or 1
  integer,        ///< the payload itself
  big_integer,    ///< Records::integers[payload]: needs more than 56 bits
  string,         ///< Records::strings[payload]
  global,         ///< Records::globals[payload]: a class, a function or a dtype, by name
  numbers,        ///< Records::lists[payload]: a tuple or a torch.Size of integers
  numbers_tuple,  ///< a tuple of one such tuple: the arguments of torch.Size
  tuple,          ///< Records::tuples[payload]: any other tuple
  list,           ///< a list of Records::containers
  dict,           ///< a dict of Records::containers, keys and values in turn
  chunk,          ///< Records::chunks[payload], a ChunkStorageMetadata
  tensor,         ///< Records::tensors[payload], a TensorStorageMetadata
  object,         ///< a BytesStorageMetadata
  properties,     ///< Records::properties[payload], a TensorProperties
  index,          ///< Records::indices[payload], a MetadataIndex
  place,          ///< Records::places[payload], a _StorageInfo
  metadata,       ///< the Metadata itself
  layout,         ///< a torch.layout; its name is Records::strings[payload]
  opaque,         ///< anything else; its class is Records::globals[payload - 1], or it has none (0)
};

/// "a dict", "a TensorStorageMetadata": for messages.
std::string_view name_of(Tag tag);

class Value {
 public:
  constexpr Value() = default;
  constexpr Value(Tag tag, std::uint64_t payload)
      : bits_(payload << 8 | static_cast<std::uint8_t>(tag)) {}
  /// Pre: fits(number).
  static constexpr Value integer(std::int64_t number) {
    return {Tag::integer, static_cast<std::uint64_t>(number)};
  }
  static constexpr bool fits(std::int64_t number) {
    return number >= -(std::int64_t{1} << 55) && number < std::int64_t{1} << 55;
  }

  constexpr Tag tag() const { return static_cast<Tag>(bits_ & 0xff); }
  constexpr std::uint64_t payload() const { return bits_ >> 8; }
  constexpr std::uint32_t id() const { return static_cast<std::uint32_t>(bits_ >> 8); }
  constexpr std::int64_t signed_payload() const { return static_cast<std::int64_t>(bits_) >> 8; }
  friend constexpr bool operator==(Value, Value) = default;

 private:
  std::uint64_t bits_ = 0;
};

/// Distinct texts, by number.
class StringTable {
 public:
  std::uint32_t add(std::string_view text);
  std::string_view operator[](std::uint32_t id) const {
    return std::string_view(bytes_).substr(begin_[id], begin_[id + 1] - begin_[id]);
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(begin_.size() - 1); }

 private:
  std::string bytes_;
  std::vector<std::size_t> begin_{0};
  IdTable table_;
};

/// The lists and dicts. One that became the state of an object is consumed: its slot is reused, and
/// no value refers to it any more.
class Containers {
 public:
  Value add(Tag tag);
  /// The content, or nullptr if it was consumed. Pre: the value is a list or a dict.
  std::vector<Value>* find(Value value);
  void consume(Value value);
  std::size_t alive() const { return slots_.size() - free_.size(); }

 private:
  struct Slot {
    std::vector<Value> values;
    std::uint32_t generation = 0;  ///< the number of earlier containers in this slot
  };
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

inline constexpr std::uint32_t unset = IdTable::none;

struct ChunkRecord {
  IndexLists::Id offsets = unset;
  IndexLists::Id sizes = unset;
};

/// A MetadataIndex. `offsets` of no_offsets: that of an object.
struct IndexRecord {
  static constexpr std::uint32_t no_offsets = unset - 1;
  std::uint32_t name = unset;
  std::uint32_t offsets = no_offsets;
};

struct PlaceRecord {
  std::uint32_t path = unset;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

/// `properties` stays unset until the object has its state. Its chunks are
/// Records::chunk_runs[first_chunk, +chunk_count).
struct TensorRecord {
  std::uint32_t properties = unset;
  IndexLists::Id size = unset;
  std::uint32_t first_chunk = 0;
  std::uint32_t chunk_count = 0;
};

struct PropertiesRecord {
  std::uint32_t dtype = unset;  ///< a global
  std::uint32_t layout = unset;
};

/// The classes and functions with a meaning here.
enum class Known : std::uint8_t {
  nothing,
  metadata,
  tensor,
  chunk,
  object,
  properties,
  index,
  place,
  size,
  layout,
  dict,
};

struct Global {
  std::uint32_t module = 0;
  std::uint32_t name = 0;
  Known known = Known::nothing;
};

/// Strings that have a meaning as names of attributes: they are the first of Records::strings, in
/// this order.
enum class Word : std::uint32_t {
  state_dict_metadata,
  planner_data,
  storage_data,
  mcore_data,
  all_local_plans,
  properties,
  size,
  chunks,
  offsets,
  sizes,
  fqn,
  index,
  offset,
  relative_path,
  length,
  transform_descriptors,
  original_shape,
  strided,
  count,
};

/// All records of a pickle, before a Metadata is assembled.
struct Records {
  Records();
  /// The attribute that a key names; Word::count for none.
  Word word(Value key) const {
    return key.tag() == Tag::string && key.payload() < words ? static_cast<Word>(key.payload())
                                                             : Word::count;
  }
  /// For messages: in quotes, and not too long.
  std::string quoted(std::uint32_t string) const;
  std::string class_name(std::uint32_t global) const;
  /// For messages: "a dict", "a pathlib.PosixPath".
  std::string describe(Value value) const;
  std::uint32_t add_global(std::uint32_t module, std::uint32_t name);
  Value add_integer(std::int64_t number);
  Value add_tuple(std::span<Value const> items);
  Value empty_tuple() const { return {Tag::numbers, 0}; }
  std::span<Value const> tuple(Value value) const;
  /// The integer of a value; nullopt for any other value.
  std::optional<std::int64_t> integer(Value value) const {
    if (value.tag() == Tag::integer) return value.signed_payload();
    if (value.tag() == Tag::big_integer) return integers[value.payload()];
    return std::nullopt;
  }
  /// A tuple, torch.Size or list of integers as one of `lists`; nullopt for any other value.
  std::optional<IndexLists::Id> numbers(Value value);
  std::optional<IndexLists::Id> numbers(std::span<Value const> items);

  static constexpr std::uint32_t words = static_cast<std::uint32_t>(Word::count);
  StringTable strings;
  std::vector<Global> globals;
  IdTable globals_by_name;
  std::vector<std::int64_t> integers;
  IndexLists lists;
  std::vector<Value> tuple_items;
  std::vector<std::size_t> tuple_begin{0};
  Containers containers;
  std::vector<ChunkRecord> chunks;
  std::vector<std::uint32_t> chunk_runs;
  std::vector<IndexRecord> indices;
  std::vector<PlaceRecord> places;
  std::vector<TensorRecord> tensors;
  std::vector<PropertiesRecord> properties;
  std::vector<Index> scratch;
};

/// The attributes of the Metadata object; unset if absent.
struct Root {
  Value state_dict_metadata;
  Value planner_data;
  Value storage_data;
  Value mcore_data;
};

}  // namespace reshard::dcp
