// Assembles a Metadata from the pickle of a `.metadata` file: checks every value, and joins chunks
// and objects with their items.

#include <algorithm>

#include <fmt/ranges.h>

#include "core/containers/dcp/metadata/metadata_machine.hpp"
#include "core/containers/torch/torch_types.hpp"

namespace reshard::dcp {
namespace {

constexpr std::size_t largest_rank = 64;
/// Steps from a state dict to a value in it.
constexpr std::size_t longest_path = 64;
/// The limit of copied bytes: the pickle may share one text or list among many keys, and each key
/// gets a copy.
constexpr std::uint64_t free_bytes = std::uint64_t{16} << 20U;
constexpr std::uint64_t bytes_per_byte = 16;

struct Alias {
  std::string_view name;
  DType dtype;
};
/// Second names of torch's types.
constexpr Alias aliases[] = {
    {"half", DType::f16}, {"float", DType::f32}, {"double", DType::f64}, {"short", DType::i16},
    {"int", DType::i32},  {"long", DType::i64},  {"cfloat", DType::c64}, {"cdouble", DType::c128},
};

std::optional<DType> dtype_of_torch(std::string_view name) {
  for (Alias const& alias : aliases)
    if (alias.name == name) return alias.dtype;
  return pickle::dtype_from_torch_name(name);
}

/// Whether a path names a file in the folder or below it.
bool stays_in_folder(std::string_view path) {
  if (path.find('\0') != std::string_view::npos) return false;
  for (;;) {
    std::size_t const slash = path.find('/');
    std::string_view const part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

class Assembler {
 public:
  Assembler(Records& records, File const& file)
      : records_(records),
        place_(file.path().string()),
        bytes_left_(free_bytes + bytes_per_byte * file.size_bytes()) {}

  Metadata run(Root const& root);

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::source, "{}: {}", place_, fmt::format(format, std::forward<Args>(args)...));
  }
  std::string quoted(std::uint32_t string) const { return records_.quoted(string); }
  std::string list_text(std::span<Index const> list) const {
    return fmt::format("[{}]", fmt::join(list.first(std::min(list.size(), largest_rank)), ", "));
  }

  /// Before `bytes` are made for `key`.
  void charge(std::uint32_t key, std::uint64_t bytes) {
    if (bytes > bytes_left_)
      refuse("up to {} the file creates far more values than it has bytes. The file is damaged.",
             quoted(key));
    bytes_left_ -= bytes;
  }
  void check_path(std::uint32_t key, std::size_t steps);

  std::vector<Value> const& dict(Value value, std::string_view what);
  void index_storage(std::vector<Value> const& pairs);
  ItemPlace item(std::uint32_t name, IndexLists::Id offsets);
  std::uint32_t file(std::uint32_t path, std::uint32_t key);
  void add_tensor(std::uint32_t name, TensorRecord const& record);
  DType dtype(std::uint32_t name, PropertiesRecord const& properties);
  void check_shape(std::uint32_t name, std::span<Index const> shape, DType dtype);
  /// Whether the chunk has elements.
  bool check_chunk(std::uint32_t name, std::span<Index const> shape, ChunkRecord const& chunk);
  void read_planner_data(Value value);
  Path path(std::uint32_t key, Value value);
  void read_flattened(Value value);

  Records& records_;
  std::string place_;
  std::uint64_t bytes_left_;
  Metadata out_;
  std::vector<Value> const* storage_ = nullptr;
  IdTable by_key_;                           ///< pairs of storage_, by name and offsets
  std::vector<std::uint32_t> file_of_path_;  ///< place in out_.files, by string
};

Metadata Assembler::run(Root const& root) {
  std::vector<Value> const& entries = dict(root.state_dict_metadata, "state_dict_metadata");
  index_storage(dict(root.storage_data, "storage_data"));
  file_of_path_.assign(records_.strings.size(), unset);
  out_.chunks.reserve(records_.chunk_runs.size());
  std::vector<bool> seen(records_.strings.size());
  for (std::size_t i = 0; i < entries.size(); i += 2) {
    Value const key = entries[i];
    Value const value = entries[i + 1];
    if (key.tag() != Tag::string)
      refuse("a key of state_dict_metadata is {}, expected a str. The file is damaged.",
             records_.describe(key));
    if (seen[key.id()])
      refuse("key {} appears twice in state_dict_metadata. The file is damaged.", quoted(key.id()));
    seen[key.id()] = true;
    if (value.tag() == Tag::tensor && records_.tensors[value.id()].properties != unset)
      add_tensor(key.id(), records_.tensors[value.id()]);
    else if (value.tag() == Tag::object)
      out_.objects.push_back({.name = std::string(records_.strings[key.id()]),
                              .item = item(key.id(), IndexRecord::no_offsets)});
    else
      refuse(
          "key {} is {}, expected TensorStorageMetadata or BytesStorageMetadata with its state. The file is damaged.",
          quoted(key.id()), records_.describe(value));
  }
  read_planner_data(root.planner_data);
  read_flattened(root.mcore_data);
  out_.lists = std::move(records_.lists);
  return std::move(out_);
}

std::vector<Value> const& Assembler::dict(Value value, std::string_view what) {
  std::vector<Value> const* const pairs =
      value.tag() == Tag::dict ? records_.containers.find(value) : nullptr;
  if (pairs == nullptr)
    refuse("{} is {}, expected a dict of its own. The file is damaged or not DCP metadata.", what,
           records_.describe(value));
  return *pairs;
}

void Assembler::index_storage(std::vector<Value> const& pairs) {
  if (pairs.size() / 2 >= IdTable::none)
    refuse("storage_data has {} entries, at most {} are read.", pairs.size() / 2,
           IdTable::none - 1);
  storage_ = &pairs;
  auto const index_of = [&](std::uint32_t pair) {
    return records_.indices[pairs[2 * std::size_t{pair}].id()];
  };
  auto const hash_of_pair = [&](std::uint32_t pair) {
    return hash_of(index_of(pair).name, index_of(pair).offsets);
  };
  by_key_.reserve(pairs.size() / 2, hash_of_pair);
  for (std::uint32_t pair = 0; pair < pairs.size() / 2; ++pair) {
    Value const key = pairs[2 * std::size_t{pair}];
    Value const value = pairs[2 * std::size_t{pair} + 1];
    if (key.tag() != Tag::index || records_.indices[key.id()].name == unset ||
        value.tag() != Tag::place || records_.places[value.id()].path == unset)
      refuse(
          "entry {} of storage_data maps {} to {}, expected MetadataIndex to _StorageInfo, each "
          "with its state. The file is damaged.",
          pair, records_.describe(key), records_.describe(value));
    IndexRecord const index = records_.indices[key.id()];
    // In a dict the last of equal keys stays.
    by_key_.add_or_replace(hash_of_pair(pair), pair, [&](std::uint32_t other) {
      return index_of(other).name == index.name && index_of(other).offsets == index.offsets;
    });
  }
}

ItemPlace Assembler::item(std::uint32_t name, IndexLists::Id offsets) {
  auto const is_it = [&](std::uint32_t pair) {
    IndexRecord const& index = records_.indices[(*storage_)[2 * std::size_t{pair}].id()];
    return index.name == name && index.offsets == offsets;
  };
  std::uint32_t const pair = by_key_.id(hash_of(name, offsets), is_it);
  if (pair == IdTable::none) {
    if (offsets == IndexRecord::no_offsets)
      refuse("object {} has no entry in storage_data. The checkpoint is incomplete: save it again.",
             quoted(name));
    refuse(
        "tensor {}, chunk at {}: storage_data has no entry for it. The checkpoint is incomplete: save it again.",
        quoted(name), list_text(records_.lists[offsets]));
  }
  PlaceRecord const& place = records_.places[(*storage_)[2 * std::size_t{pair} + 1].id()];
  if (place.size_bytes == 0 ||
      place.size_bytes >
          std::uint64_t{std::numeric_limits<std::int64_t>::max()} - place.offset_bytes)
    refuse(
        "an item of {} begins at byte {} and has {} bytes, expected some and an end below 2^63. The file is damaged.",
        quoted(name), place.offset_bytes, place.size_bytes);
  return {.file = file(place.path, name),
          .offset_bytes = place.offset_bytes,
          .size_bytes = place.size_bytes};
}

std::uint32_t Assembler::file(std::uint32_t path, std::uint32_t key) {
  std::uint32_t& number = file_of_path_[path];
  if (number != unset) return number;
  if (!stays_in_folder(records_.strings[path]))
    refuse(
        "the item of {} is in {}, which is not a file in the checkpoint's folder. The file is "
        "damaged.",
        quoted(key), quoted(path));
  number = static_cast<std::uint32_t>(out_.files.size());
  out_.files.emplace_back(records_.strings[path]);
  return number;
}

DType Assembler::dtype(std::uint32_t name, PropertiesRecord const& properties) {
  Global const& global = records_.globals[properties.dtype];
  auto const dtype = records_.strings[global.module] == "torch"
                         ? dtype_of_torch(records_.strings[global.name])
                         : std::nullopt;
  if (!dtype)
    refuse(
        "tensor {} has dtype {}, which is not supported. Drop it, or convert it to another dtype and save again.",
        quoted(name), records_.class_name(properties.dtype));
  if (properties.layout != static_cast<std::uint32_t>(Word::strided))
    refuse(
        "tensor {} has layout {}, only torch.strided is supported. Make it dense and save again.",
        quoted(name), quoted(properties.layout));
  return *dtype;
}

void Assembler::check_shape(std::uint32_t name, std::span<Index const> shape, DType dtype) {
  if (shape.size() > largest_rank)
    refuse("tensor {} has {} dimensions, at most {} are read. The file is damaged.", quoted(name),
           shape.size(), largest_rank);
  Index const width = bits(dtype) / 8;
  Index volume = 1;
  for (Index const extent : shape) {
    if (extent < 0)
      refuse("tensor {} has shape {}, with a dimension below zero. The file is damaged.",
             quoted(name), list_text(shape));
    if (__builtin_mul_overflow(volume, std::max<Index>(extent, 1), &volume) ||
        volume > std::numeric_limits<Index>::max() / width)
      refuse("tensor {} has shape {} of {}, more than 2^63 bytes. The file is damaged.",
             quoted(name), list_text(shape), reshard::name(dtype));
  }
}

bool Assembler::check_chunk(std::uint32_t name, std::span<Index const> shape,
                            ChunkRecord const& chunk) {
  auto const offsets = records_.lists[chunk.offsets];
  auto const sizes = records_.lists[chunk.sizes];
  bool inside = offsets.size() == shape.size() && sizes.size() == shape.size();
  bool empty = false;
  for (std::size_t d = 0; inside && d < shape.size(); ++d) {
    inside = offsets[d] >= 0 && sizes[d] >= 0 && offsets[d] <= shape[d] &&
             sizes[d] <= shape[d] - offsets[d];
    empty = empty || sizes[d] == 0;
  }
  if (!inside)
    refuse(
        "tensor {} has shape {}, its chunk at {} of sizes {} is not inside. The file is damaged.",
        quoted(name), list_text(shape), list_text(offsets), list_text(sizes));
  return !empty;
}

void Assembler::add_tensor(std::uint32_t name, TensorRecord const& record) {
  StoredTensor tensor;
  tensor.name = records_.strings[name];
  tensor.dtype = dtype(name, records_.properties[record.properties]);
  auto const shape = records_.lists[record.size];
  check_shape(name, shape, tensor.dtype);
  tensor.shape = shape;
  tensor.first_chunk = static_cast<std::uint32_t>(out_.chunks.size());
  bool const no_elements = std::ranges::find(shape, 0) != shape.end();
  for (std::uint32_t i = 0; i < record.chunk_count; ++i) {
    ChunkRecord const& chunk = records_.chunks[records_.chunk_runs[record.first_chunk + i]];
    bool const has_elements = check_chunk(name, shape, chunk);
    bool const only_one = no_elements && i == 0;
    if (has_elements || only_one)
      out_.chunks.push_back(
          {.offsets = chunk.offsets, .sizes = chunk.sizes, .item = item(name, chunk.offsets)});
  }
  tensor.chunk_count = static_cast<std::uint32_t>(out_.chunks.size()) - tensor.first_chunk;
  out_.tensors.push_back(std::move(tensor));
}

void Assembler::read_planner_data(Value value) {
  if (value.tag() == Tag::none || value.tag() == Tag::unset) return;
  std::vector<Value> const& pairs = dict(value, "planner_data");
  std::vector<bool> seen(records_.strings.size());
  out_.planner_data.emplace().reserve(pairs.size() / 2);
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    if (pairs[i].tag() != Tag::string)
      refuse("a key of planner_data is {}, expected a str. The file is damaged.",
             records_.describe(pairs[i]));
    std::uint32_t const key = pairs[i].id();
    if (seen[key])
      refuse("key {} appears twice in planner_data. The file is damaged.", quoted(key));
    seen[key] = true;
    out_.planner_data->emplace_back(records_.strings[key], path(key, pairs[i + 1]));
  }
}

void Assembler::check_path(std::uint32_t key, std::size_t steps) {
  if (steps > longest_path)
    refuse("planner_data of {} has {} steps, at most {} are read. The file is damaged.",
           quoted(key), steps, longest_path);
  charge(key, steps * sizeof(Path::value_type));
}

Path Assembler::path(std::uint32_t key, Value value) {
  Path steps;
  if (value.tag() == Tag::numbers) {
    check_path(key, records_.lists[value.id()].size());
    for (Index const number : records_.lists[value.id()]) steps.emplace_back(number);
  } else if (value.tag() == Tag::tuple) {
    check_path(key, records_.tuple(value).size());
    for (Value const step : records_.tuple(value)) {
      if (step.tag() == Tag::string) {
        charge(key, records_.strings[step.id()].size());
        steps.emplace_back(std::string(records_.strings[step.id()]));
      } else if (auto const number = records_.integer(step)) {
        steps.emplace_back(*number);
      } else {
        refuse(
            "planner_data of {} has a step that is {}, expected a str or an int. The file is damaged.",
            quoted(key), records_.describe(step));
      }
    }
  } else {
    refuse("planner_data of {} is {}, expected a tuple. The file is damaged.", quoted(key),
           records_.describe(value));
  }
  return steps;
}

void Assembler::read_flattened(Value value) {
  if (value.tag() == Tag::none || value.tag() == Tag::unset) return;
  std::vector<Value> const& pairs = dict(value, "mcore_data");
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    if (pairs[i].tag() != Tag::string)
      refuse("a key of mcore_data is {}, expected a str. The file is damaged.",
             records_.describe(pairs[i]));
    std::vector<Value> const& facts =
        dict(pairs[i + 1], fmt::format("mcore_data of {}", quoted(pairs[i].id())));
    charge(pairs[i].id(), facts.size() * sizeof(Value));
    for (std::size_t j = 0; j < facts.size(); j += 2) {
      if (records_.word(facts[j]) != Word::original_shape) continue;
      auto const shape = records_.numbers(facts[j + 1]);
      if (!shape)
        refuse(
            "mcore_data of {}: the original shape is {}, expected a tuple of ints. The file is damaged.",
            quoted(pairs[i].id()), records_.describe(facts[j + 1]));
      auto const numbers = records_.lists[*shape];
      if (numbers.size() > largest_rank)
        refuse(
            "mcore_data of {}: the original shape has {} dimensions, at most {} are read. The file is damaged.",
            quoted(pairs[i].id()), numbers.size(), largest_rank);
      charge(pairs[i].id(),
             numbers.size() * sizeof(Index) + records_.strings[pairs[i].id()].size());
      out_.flattened.emplace_back(records_.strings[pairs[i].id()],
                                  std::vector<Index>(numbers.begin(), numbers.end()));
    }
  }
}

}  // namespace

Metadata read_metadata(File const& file) {
  Machine machine(file);
  Root const root = machine.run();
  return Assembler(machine.records(), file).run(root);
}

}  // namespace reshard::dcp
