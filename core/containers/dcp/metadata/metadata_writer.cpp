#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/containers/dcp/metadata/metadata_emitter.hpp"
#include "core/containers/torch/torch_types.hpp"

namespace reshard::dcp {
namespace {

using pickle::Op;

constexpr std::string_view metadata_module = "torch.distributed.checkpoint.metadata";
constexpr std::string_view filesystem_module = "torch.distributed.checkpoint.filesystem";
/// The share of files in the memo's short numbers; the rest is for sizes.
constexpr std::size_t most_files_ahead = 128;
constexpr std::size_t numbers_for_words = 64;

/// The numbers [0, counts.size()) with the largest counts, at most `most` of them and each counted
/// `least` times or more; the largest first.
std::vector<std::uint32_t> most_frequent(std::vector<std::uint32_t> const& counts, std::size_t most,
                                         std::uint32_t least) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < counts.size(); ++i)
    if (counts[i] >= least) order.push_back(i);
  most = std::min(most, order.size());
  auto const before = [&](std::uint32_t a, std::uint32_t b) {
    return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(most), order.end(),
                    before);
  order.resize(most);
  return order;
}

class Writer {
 public:
  Writer(Metadata const& metadata, MetadataStyle style)
      : metadata_(metadata),
        out_(style),
        lists_(metadata.lists.size(), Emitter::not_stored),
        properties_(dtypes, Emitter::not_stored) {}

  std::string run();

 private:
  static constexpr std::size_t dtypes = static_cast<std::size_t>(last_dtype) + 1;

  void store_ahead();
  void store_files_ahead();
  void store_sizes_ahead();
  void state_dict_metadata();
  std::vector<std::size_t> key_order() const;
  void planner_data();
  void storage_data();
  void tensor(StoredTensor const& tensor);
  void properties(StoredTensor const& tensor);
  void property_values(std::string_view dtype);
  void chunk(StoredChunk const& chunk);
  void index_state(std::string_view name, std::size_t index, StoredChunk const* chunk);
  void place(ItemPlace const& item);
  void path(Path const& path);
  void size(std::span<Index const> list);
  void size(IndexLists::Id list);

  Metadata const& metadata_;
  Emitter out_;
  std::vector<std::uint32_t> lists_;       ///< memo numbers of the torch.Size objects
  std::vector<std::uint32_t> properties_;  ///< of the states of TensorProperties, by dtype
};

std::string Writer::run() {
  out_.reserve(metadata_.chunks.size() * (out_.compact() ? 96 : 448) + 4096);
  out_.protocol();
  if (out_.compact()) store_ahead();
  out_.new_object(metadata_module, "Metadata");
  out_.op(Op::empty_dict);
  out_.op(Op::mark);
  out_.string("state_dict_metadata");
  state_dict_metadata();
  out_.string("planner_data");
  planner_data();
  out_.string("storage_data");
  storage_data();
  out_.string("storage_meta");
  out_.op(Op::none);
  out_.op(Op::setitems);
  out_.op(Op::build);
  out_.op(Op::stop);
  return out_.take();
}

/// Values that every chunk fetches, pushed and dropped again, so that they have the memo's short
/// numbers.
void Writer::store_ahead() {
  auto const drop = [this] { out_.op(Op::pop); };
  for (std::string_view const name : {"ChunkStorageMetadata", "MetadataIndex"})
    out_.global(metadata_module, name), drop();
  out_.global(filesystem_module, "_StorageInfo"), drop();
  out_.global("torch", "Size"), drop();
  for (std::string_view const word :
       {"offsets", "sizes", "fqn", "index", "offset", "relative_path", "length"})
    out_.string(word), drop();
  store_files_ahead();
  store_sizes_ahead();
}

void Writer::store_files_ahead() {
  std::vector<std::uint32_t> uses(metadata_.files.size());
  for (StoredChunk const& chunk : metadata_.chunks) ++uses[chunk.item.file];
  for (StoredObject const& object : metadata_.objects) ++uses[object.item.file];
  for (std::uint32_t const file : most_frequent(uses, most_files_ahead, 2)) {
    out_.string(metadata_.files[file]);
    out_.op(Op::pop);
  }
}

void Writer::store_sizes_ahead() {
  std::vector<std::uint32_t> uses(metadata_.lists.size());
  for (StoredChunk const& chunk : metadata_.chunks) {
    uses[chunk.offsets] += 2;
    ++uses[chunk.sizes];
  }
  for (std::uint32_t const list :
       most_frequent(uses, Emitter::short_numbers - numbers_for_words - out_.stored(), 3)) {
    size(list);
    out_.op(Op::pop);
  }
}

void Writer::state_dict_metadata() {
  out_.op(Op::empty_dict);
  std::size_t const tensors = metadata_.tensors.size();
  std::vector<std::size_t> const order = key_order();
  out_.batches(order.size(), Op::setitems, [&](std::size_t k) {
    std::size_t const i = order[k];
    if (i < tensors) return tensor(metadata_.tensors[i]);
    out_.string(metadata_.objects[i - tensors].name);
    out_.new_object(metadata_module, "BytesStorageMetadata");
  });
}

/// Tensors, then objects, as numbers from 0; those that planner_data names come first, in its
/// order: torch builds nested dicts in this order.
std::vector<std::size_t> Writer::key_order() const {
  std::size_t const tensors = metadata_.tensors.size();
  std::size_t const keys = tensors + metadata_.objects.size();
  std::vector<std::size_t> order;
  std::vector<bool> placed(keys, false);
  if (metadata_.planner_data) {
    std::unordered_map<std::string_view, std::size_t> numbers;
    for (std::size_t i = 0; i < keys; ++i)
      numbers.emplace(
          i < tensors ? metadata_.tensors.name(i).text() : metadata_.objects[i - tensors].name, i);
    for (auto const& [key, path] : *metadata_.planner_data) {
      auto const found = numbers.find(key);
      if (found == numbers.end() || placed[found->second]) continue;
      placed[found->second] = true;
      order.push_back(found->second);
    }
  }
  for (std::size_t i = 0; i < keys; ++i)
    if (!placed[i]) order.push_back(i);
  return order;
}

void Writer::tensor(StoredTensor const& tensor) {
  out_.string(tensor.name);
  out_.new_object(metadata_module, "TensorStorageMetadata");
  out_.op(Op::empty_dict);
  out_.op(Op::mark);
  out_.string("properties");
  properties(tensor);
  out_.string("size");
  size(tensor.shape);
  out_.string("chunks");
  out_.op(Op::empty_list);
  auto const chunks = metadata_.chunks_of(tensor);
  out_.batches(chunks.size(), Op::appends, [&](std::size_t i) { chunk(chunks[i]); });
  out_.op(Op::setitems);
  out_.op(Op::build);
}

void Writer::properties(StoredTensor const& tensor) {
  pickle::TorchType const* const type = pickle::torch_type(tensor.dtype);
  if (type == nullptr)
    fail(ErrorKind::source,
         "tensor '{}' is {}, a dtype that torch does not have: a torch checkpoint cannot hold it.",
         tensor.name, name(tensor.dtype));
  out_.new_object(metadata_module, "TensorProperties");
  std::uint32_t& number = properties_[static_cast<std::size_t>(tensor.dtype)];
  if (!out_.fetch(number)) {
    property_values(type->name);
    out_.store(number);
  }
  out_.op(Op::build);
}

/// dtype, layout, requires_grad, memory format, pin_memory.
void Writer::property_values(std::string_view dtype) {
  out_.op(Op::mark);
  out_.global("torch", dtype);
  out_.global("torch.serialization", "_get_layout");
  out_.string("torch.strided");
  out_.op(Op::tuple1);
  out_.op(Op::reduce);
  out_.boolean(false);
  out_.global(metadata_module, "_MEM_FORMAT_ENCODING");
  out_.integer(0);
  out_.op(Op::tuple1);
  out_.op(Op::reduce);
  out_.boolean(false);
  out_.op(Op::tuple);
}

void Writer::chunk(StoredChunk const& chunk) {
  out_.new_object(metadata_module, "ChunkStorageMetadata");
  out_.op(Op::empty_dict);
  out_.op(Op::mark);
  out_.string("offsets");
  size(chunk.offsets);
  out_.string("sizes");
  size(chunk.sizes);
  out_.op(Op::setitems);
  out_.op(Op::build);
}

void Writer::planner_data() {
  out_.op(Op::empty_dict);
  if (!metadata_.planner_data) return;
  out_.batches(metadata_.planner_data->size(), Op::setitems, [&](std::size_t i) {
    auto const& [key, steps] = (*metadata_.planner_data)[i];
    out_.string(key);
    path(steps);
  });
}

void Writer::path(Path const& path) {
  out_.tuple(path.size(), [&](std::size_t i) {
    if (auto const* const word = std::get_if<std::string>(&path[i])) return out_.string(*word);
    out_.integer(std::get<std::int64_t>(path[i]));
  });
}

void Writer::storage_data() {
  out_.op(Op::empty_dict);
  std::size_t tensor = 0;
  std::size_t index = 0;
  std::size_t const chunks = metadata_.chunks.size();
  out_.batches(chunks + metadata_.objects.size(), Op::setitems, [&](std::size_t i) {
    out_.new_object(metadata_module, "MetadataIndex");
    if (i >= chunks) {
      StoredObject const& object = metadata_.objects[i - chunks];
      index_state(object.name, 0, nullptr);
      return place(object.item);
    }
    for (; index == metadata_.tensors[tensor].chunk_count; ++tensor) index = 0;
    StoredTensor const& owner = metadata_.tensors[tensor];
    StoredChunk const& chunk = metadata_.chunks[owner.first_chunk + index];
    index_state(owner.name, index++, &chunk);
    place(chunk.item);
  });
}

void Writer::index_state(std::string_view name, std::size_t index, StoredChunk const* chunk) {
  out_.op(Op::empty_dict);
  out_.op(Op::mark);
  out_.string("fqn");
  out_.string(name);
  out_.string("index");
  if (chunk == nullptr) {
    out_.op(Op::none);
  } else {
    out_.integer(static_cast<std::int64_t>(index));
    out_.string("offset");
    size(chunk->offsets);
  }
  out_.op(Op::setitems);
  out_.op(Op::build);
}

void Writer::place(ItemPlace const& item) {
  out_.new_object(filesystem_module, "_StorageInfo");
  out_.op(Op::empty_dict);
  out_.op(Op::mark);
  out_.string("relative_path");
  out_.string(metadata_.files[item.file]);
  out_.string("offset");
  out_.integer(narrow<std::int64_t>(item.offset_bytes));
  out_.string("length");
  out_.integer(narrow<std::int64_t>(item.size_bytes));
  out_.op(Op::setitems);
  out_.op(Op::build);
}

void Writer::size(std::span<Index const> list) {
  out_.global("torch", "Size");
  out_.tuple(list.size(), [&](std::size_t i) { out_.integer(list[i]); });
  out_.op(Op::tuple1);
  out_.op(Op::reduce);
}

void Writer::size(IndexLists::Id list) {
  if (out_.fetch(lists_[list])) return;
  size(metadata_.lists[list]);
  out_.store(lists_[list]);
}

}  // namespace

std::string write_metadata(Metadata const& metadata, MetadataStyle style) {
  std::size_t chunks = 0;
  for (StoredTensor const& tensor : metadata.tensors) chunks += metadata.chunks_of(tensor).size();
  RESHARD_EXPECT(chunks == metadata.chunks.size());
  return Writer(metadata, style).run();
}

}  // namespace reshard::dcp
