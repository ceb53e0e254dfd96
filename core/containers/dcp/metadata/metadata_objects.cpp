// The calls and objects of the pickle: the meanings of classes and functions, and the states of
// objects.

#include "core/containers/dcp/metadata/metadata_machine.hpp"
#include "core/containers/torch/pickle/pickle_text.hpp"

namespace reshard::dcp {
namespace {

constexpr std::size_t longest_line_bytes = 1024;
constexpr std::size_t tensor_property_count = 5;

/// A new record at the end of a table, as the value that leads to it.
template <class Record>
Value append_to(std::vector<Record>& records, Tag tag) {
  if (records.size() >= IndexRecord::no_offsets)
    fail(ErrorKind::resources, "more than {} objects of one class cannot be held.", records.size());
  records.emplace_back();
  return {tag, records.size() - 1};
}

}  // namespace

std::string_view Machine::line() {
  std::size_t length = 0;
  while (source_.peek(length) != '\n')
    if (++length > longest_line_bytes)
      refuse("the name of a class is longer than {} bytes. The file is damaged.",
             longest_line_bytes);
  std::string_view const text = source_.take(length + 1).substr(0, length);
  if (!pickle::is_utf8(text)) refuse("the name of a class is not UTF-8. The file is damaged.");
  return text;
}

void Machine::global_by_lines() {
  std::uint32_t const module = records_.strings.add(line());
  std::uint32_t const name = records_.strings.add(line());
  push({Tag::global, records_.add_global(module, name)});
}

void Machine::global_by_strings() {
  Value const name = pop();
  Value const module = pop();
  if (name.tag() != Tag::string || module.tag() != Tag::string)
    refuse("a class is named by {} and {}, expected strings. The file is damaged.",
           records_.describe(module), records_.describe(name));
  push({Tag::global, records_.add_global(module.id(), name.id())});
}

Value Machine::new_record(Known known) {
  switch (known) {
    case Known::chunk: return append_to(records_.chunks, Tag::chunk);
    case Known::index: return append_to(records_.indices, Tag::index);
    case Known::place: return append_to(records_.places, Tag::place);
    case Known::tensor: return append_to(records_.tensors, Tag::tensor);
    case Known::properties: return append_to(records_.properties, Tag::properties);
    case Known::object: return {Tag::object, 0};
    case Known::metadata: return {Tag::metadata, metadata_objects_++};
    default: return {};
  }
}

void Machine::new_object() {
  Value const arguments = pop();
  Value const type = pop();
  if (type.tag() != Tag::global) return push({Tag::opaque, 0});
  Value record;
  if (arguments == records_.empty_tuple()) record = new_record(records_.globals[type.id()].known);
  push(record.tag() == Tag::unset ? Value(Tag::opaque, type.payload() + 1) : record);
}

void Machine::new_object_with_keywords() {
  Value const keywords = pop();
  std::vector<Value> const* const pairs =
      keywords.tag() == Tag::dict ? records_.containers.find(keywords) : nullptr;
  if (pairs != nullptr && pairs->empty()) return new_object();
  pop();
  Value const type = pop();
  push({Tag::opaque, type.tag() == Tag::global ? type.payload() + 1 : 0});
}

void Machine::call() {
  Value const arguments = pop();
  push(result_of(pop(), arguments));
}

Value Machine::result_of(Value callable, Value arguments) {
  if (callable.tag() != Tag::global) return {Tag::opaque, 0};
  Value const opaque{Tag::opaque, callable.payload() + 1};
  bool const empty = arguments == records_.empty_tuple();
  switch (records_.globals[callable.id()].known) {
    case Known::size: {
      if (empty || arguments.tag() == Tag::numbers_tuple)
        return {Tag::numbers, arguments.payload()};
      if (arguments.tag() != Tag::tuple || records_.tuple(arguments).size() != 1) return opaque;
      auto const numbers = records_.numbers(records_.tuple(arguments)[0]);
      return numbers ? Value(Tag::numbers, *numbers) : opaque;
    }
    case Known::layout:
      if (arguments.tag() != Tag::tuple || records_.tuple(arguments).size() != 1 ||
          records_.tuple(arguments)[0].tag() != Tag::string)
        return opaque;
      return {Tag::layout, records_.tuple(arguments)[0].payload()};
    case Known::dict: return empty ? new_container(Tag::dict) : opaque;
    default: return opaque;
  }
}

void Machine::build() {
  Value const state = pop();
  Value const object = top();
  switch (object.tag()) {
    case Tag::chunk: build_chunk(object.id(), state_dict(state, object)); break;
    case Tag::index: build_index(object.id(), state_dict(state, object)); break;
    case Tag::place: build_place(object.id(), state_dict(state, object)); break;
    case Tag::tensor: build_tensor(object.id(), state_dict(state, object)); break;
    case Tag::metadata: build_metadata(object.id(), state_dict(state, object)); break;
    case Tag::properties: return build_properties(object.id(), state);
    case Tag::object: state_dict(state, object); break;
    case Tag::opaque: break;
    default: refuse("a state is given to {}. The file is damaged.", records_.describe(object));
  }
  if (state.tag() == Tag::dict && records_.containers.find(state) != nullptr)
    records_.containers.consume(state);
}

std::span<Value const> Machine::state_dict(Value state, Value object) {
  std::vector<Value> const* const pairs =
      state.tag() == Tag::dict ? records_.containers.find(state) : nullptr;
  if (pairs == nullptr)
    refuse("the state of {} is {}, expected a dict of its own. The file is damaged.",
           name_of(object.tag()), records_.describe(state));
  return *pairs;
}

IndexLists::Id Machine::numbers_of(Value value, std::string_view what) {
  auto const numbers = records_.numbers(value);
  if (!numbers)
    refuse("{} is {}, expected a tuple of ints. The file is damaged.", what,
           records_.describe(value));
  return *numbers;
}

std::uint32_t Machine::string_of(Value value, std::string_view what) {
  if (value.tag() != Tag::string)
    refuse("{} is {}, expected a str. The file is damaged.", what, records_.describe(value));
  return value.id();
}

std::uint64_t Machine::byte_count_of(Value value, std::string_view what) {
  auto const number = records_.integer(value);
  if (!number)
    refuse("{} is {}, expected an int below 2^63. The file is damaged.", what,
           records_.describe(value));
  if (*number < 0) refuse("{} is {}, below zero. The file is damaged.", what, *number);
  return static_cast<std::uint64_t>(*number);
}

void Machine::build_chunk(std::uint32_t id, std::span<Value const> state) {
  ChunkRecord record;
  for (std::size_t i = 0; i < state.size(); i += 2) {
    Word const word = records_.word(state[i]);
    if (word == Word::offsets) record.offsets = numbers_of(state[i + 1], "offsets of a chunk");
    if (word == Word::sizes) record.sizes = numbers_of(state[i + 1], "sizes of a chunk");
  }
  if (record.offsets == unset || record.sizes == unset)
    refuse("a ChunkStorageMetadata has no offsets or no sizes. The file is damaged.");
  if (records_.chunks[id].offsets != unset)
    refuse("a ChunkStorageMetadata is given two states. The file is damaged.");
  records_.chunks[id] = record;
}

void Machine::build_index(std::uint32_t id, std::span<Value const> state) {
  IndexRecord record;
  for (std::size_t i = 0; i < state.size(); i += 2) {
    Value const value = state[i + 1];
    Word const word = records_.word(state[i]);
    if (word == Word::fqn) record.name = string_of(value, "fqn of a MetadataIndex");
    if (word == Word::offset && value.tag() != Tag::none)
      record.offsets = numbers_of(value, "offset of a MetadataIndex");
    if (word == Word::index && value.tag() != Tag::none && !records_.integer(value))
      refuse("index of a MetadataIndex is {}, expected an int or None. The file is damaged.",
             records_.describe(value));
  }
  if (record.name == unset) refuse("a MetadataIndex has no fqn. The file is damaged.");
  if (records_.indices[id].name != unset)
    refuse("a MetadataIndex is given two states. The file is damaged.");
  records_.indices[id] = record;
}

void Machine::build_place(std::uint32_t id, std::span<Value const> state) {
  PlaceRecord record;
  int numbers = 0;
  for (std::size_t i = 0; i < state.size(); i += 2) {
    Value const value = state[i + 1];
    switch (records_.word(state[i])) {
      case Word::relative_path:
        record.path = string_of(value, "relative_path of a _StorageInfo");
        break;
      case Word::offset:
        record.offset_bytes = byte_count_of(value, "offset of a _StorageInfo"), numbers |= 1;
        break;
      case Word::length:
        record.size_bytes = byte_count_of(value, "length of a _StorageInfo"), numbers |= 2;
        break;
      case Word::transform_descriptors: refuse_transforms(value, record); break;
      default: break;
    }
  }
  if (record.path == unset || numbers != 3)
    refuse("a _StorageInfo lacks its relative_path, offset or length. The file is damaged.");
  if (records_.places[id].path != unset)
    refuse("a _StorageInfo is given two states. The file is damaged.");
  records_.places[id] = record;
}

void Machine::refuse_transforms(Value value, PlaceRecord const& place) {
  if (value.tag() == Tag::none || value == records_.empty_tuple()) return;
  std::vector<Value> const* const list =
      value.tag() == Tag::list ? records_.containers.find(value) : nullptr;
  if (list != nullptr && list->empty()) return;
  Value const first = list != nullptr             ? list->front()
                      : value.tag() == Tag::tuple ? records_.tuple(value)[0]
                                                  : Value();
  std::string const how =
      first.tag() == Tag::string ? records_.quoted(first.id()) : records_.describe(value);
  refuse(
      "an item of {} is stored transformed ({}). Save it without compression or other extensions.",
      place.path == unset ? "a file" : records_.quoted(place.path), how);
}

void Machine::build_tensor(std::uint32_t id, std::span<Value const> state) {
  TensorRecord record;
  Value chunks;
  for (std::size_t i = 0; i < state.size(); i += 2) {
    Value const value = state[i + 1];
    Word const word = records_.word(state[i]);
    if (word == Word::size) record.size = numbers_of(value, "size of a tensor");
    if (word == Word::chunks) chunks = value;
    if (word != Word::properties) continue;
    if (value.tag() != Tag::properties || records_.properties[value.id()].dtype == unset)
      refuse(
          "properties of a tensor are {}, expected TensorProperties with its state. The file is damaged.",
          records_.describe(value));
    record.properties = value.id();
  }
  if (record.properties == unset || record.size == unset || chunks.tag() == Tag::unset)
    refuse("a TensorStorageMetadata lacks its properties, size or chunks. The file is damaged.");
  if (records_.tensors[id].properties != unset)
    refuse("a TensorStorageMetadata is given two states. The file is damaged.");
  take_chunks(record, chunks);
  records_.tensors[id] = record;
}

void Machine::take_chunks(TensorRecord& record, Value list) {
  std::vector<Value> const* const values =
      list.tag() == Tag::list ? records_.containers.find(list) : nullptr;
  if (values == nullptr)
    refuse("chunks of a tensor are {}, expected a list of its own. The file is damaged.",
           records_.describe(list));
  if (values->size() + records_.chunk_runs.size() >= unset)
    refuse("the tensors have more than {} chunks. The file is damaged.", unset);
  record.first_chunk = static_cast<std::uint32_t>(records_.chunk_runs.size());
  record.chunk_count = static_cast<std::uint32_t>(values->size());
  for (Value const value : *values) {
    if (value.tag() != Tag::chunk || records_.chunks[value.id()].offsets == unset)
      refuse(
          "the chunks of a tensor hold {}, expected ChunkStorageMetadata with its state. The file is damaged.",
          records_.describe(value));
    records_.chunk_runs.push_back(value.id());
  }
  records_.containers.consume(list);
}

void Machine::build_properties(std::uint32_t id, Value state) {
  std::span<Value const> const items =
      state.tag() == Tag::tuple ? records_.tuple(state) : std::span<Value const>();
  if (items.size() < tensor_property_count)
    refuse(
        "the state of a TensorProperties is {} of {}, expected a tuple of {} or more. The file is damaged.",
        records_.describe(state), items.size(), tensor_property_count);
  constexpr Tag expected[tensor_property_count] = {Tag::global, Tag::layout, Tag::boolean,
                                                   Tag::opaque, Tag::boolean};
  for (std::size_t i = 0; i < tensor_property_count; ++i)
    if (items[i].tag() != expected[i])
      refuse("value {} of a TensorProperties is {}, expected {}. The file is damaged.", i,
             records_.describe(items[i]), name_of(expected[i]));
  if (records_.properties[id].dtype != unset)
    refuse("a TensorProperties is given two states. The file is damaged.");
  records_.properties[id] = {.dtype = items[0].id(), .layout = items[1].id()};
}

void Machine::build_metadata(std::uint64_t id, std::span<Value const> state) {
  if (id != 0 || has_root_) refuse("the file has a second Metadata. The file is damaged.");
  has_root_ = true;
  for (std::size_t i = 0; i < state.size(); i += 2) switch (records_.word(state[i])) {
      case Word::state_dict_metadata: root_.state_dict_metadata = state[i + 1]; break;
      case Word::planner_data: root_.planner_data = state[i + 1]; break;
      case Word::storage_data: root_.storage_data = state[i + 1]; break;
      case Word::mcore_data: root_.mcore_data = state[i + 1]; break;
      default: break;
    }
}

}  // namespace reshard::dcp
