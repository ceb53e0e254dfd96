#include "core/formats/dcp/source.hpp"

#include <algorithm>

#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/base/text/wire.hpp"
#include "core/base/threads/workers.hpp"
#include "core/containers/dcp/item.hpp"
#include "core/containers/dcp/item_paths.hpp"
#include "core/containers/dcp/metadata/joined_metadata.hpp"
#include "core/containers/saves.hpp"
#include "core/formats/dcp/describe.hpp"
#include "core/formats/dcp/keys.hpp"
#include "core/formats/dcp/named_settings.hpp"
#include "core/formats/dcp/named_states.hpp"
#include "core/formats/dcp/unflatten.hpp"
#include "core/formats/headers/shared_headers.hpp"
#include "core/formats/headers/stamped_files.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/writer.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/targets/copied_files.hpp"

namespace reshard::dcp {
namespace {

namespace fs = std::filesystem;

/// Serialises the content of item heads for the other ranks.
void pack(WireWriter& out, ItemTensor const& item) {
  out.number(item.payload_offset_bytes).number(item.storage_offset_bytes);
  out.number(item.storage_bytes).put(item.object).put(item.strides);
}

/// Moves tensors with such chunks to the objects: their elements are in no order that is known
/// here.
void move_to_objects(StoredTable& stored, std::vector<bool> const& is_object) {
  StoredChunks chunks;
  std::vector<std::uint64_t> payloads;
  std::map<std::size_t, std::vector<Index>> strides;
  StoredTensors tensors;
  for (StoredTensor tensor : stored.tensors) {
    std::size_t const first = tensor.first_chunk;
    std::size_t const last = first + tensor.chunk_count;
    bool const moved = std::any_of(is_object.begin() + static_cast<std::ptrdiff_t>(first),
                                   is_object.begin() + static_cast<std::ptrdiff_t>(last),
                                   [](bool one) { return one; });
    tensor.first_chunk = narrow<std::uint32_t>(chunks.size());
    for (std::size_t c = first; c < last; ++c) {
      StoredChunk const chunk = stored.chunks[c];
      if (moved) {
        auto const offsets = stored.offsets(chunk);
        auto const sizes = stored.sizes(chunk);
        stored.objects.push_back({std::string(tensor.name.text()), chunk.item,
                                  ObjectTensor{tensor.dtype,
                                               tensor.shape,
                                               {offsets.begin(), offsets.end()},
                                               {sizes.begin(), sizes.end()}}});
        continue;
      }
      if (auto const found = stored.strides.find(c); found != stored.strides.end())
        strides[chunks.size()] = std::move(found->second);
      payloads.push_back(stored.payload_offsets[c]);
      chunks.push_back(chunk);
    }
    if (!moved) tensors.push_back(std::move(tensor));
  }
  stored.chunks = std::move(chunks);
  stored.payload_offsets = std::move(payloads);
  stored.strides = std::move(strides);
  stored.tensors = std::move(tensors);
}

/// The number of heads that one thread reads at a time.
constexpr std::size_t heads_at_a_time = 16;

/// Reads the heads of all items, each rank those of a run of chunks, and gives all of them to every
/// rank.
void read_item_heads(Checkpoint& checkpoint, StampedFiles& files, TorchaoTensors torchao,
                     HeaderExchange const& exchange) {
  StoredTable& stored = checkpoint.stored;
  std::size_t const count = stored.chunks.size();
  auto const ranks = static_cast<std::size_t>(exchange.size());
  auto const first_of = [&](std::size_t rank) {
    return count / ranks * rank + std::min(rank, count % ranks);
  };
  WireWriter mine;
  exchange.together([&] {
    auto const rank = static_cast<std::size_t>(exchange.rank());
    std::size_t const first = first_of(rank);
    std::size_t const last = first_of(rank + 1);
    constexpr std::uint32_t no_tensor = 0xffffffffU;
    std::vector<std::uint32_t> tensor_of(last - first, no_tensor);
    for (std::size_t t = 0; t < stored.tensors.size(); ++t) {
      StoredTensor const tensor = stored.tensors[t];
      for (std::size_t c = std::max<std::size_t>(tensor.first_chunk, first);
           c < std::min<std::size_t>(tensor.first_chunk + tensor.chunk_count, last); ++c)
        tensor_of[c - first] = narrow<std::uint32_t>(t);
    }
    RESHARD_EXPECT(std::ranges::count(tensor_of, no_tensor) == 0);
    std::vector<std::string> blocks((last - first + heads_at_a_time - 1) / heads_at_a_time);
    overlapped(blocks.size(), [&](std::size_t block) {
      WireWriter heads;
      std::size_t const begin = first + block * heads_at_a_time;
      for (std::size_t c = begin; c < std::min(begin + heads_at_a_time, last); ++c) {
        StoredChunk const& chunk = stored.chunks[c];
        StoredTensor const tensor = stored.tensors[tensor_of[c - first]];
        auto const file = files.open(chunk.item.file);
        pack(heads, read_tensor_item(*file, chunk.item, tensor.dtype, stored.sizes(chunk),
                                     tensor.name, torchao));
      }
      blocks[block] = std::move(heads).take();
    });
    for (std::string& heads : blocks) mine.raw(std::exchange(heads, {}));
  });
  stored.payload_offsets.reserve(count);
  std::vector<bool> objects(count, false);
  for (std::string const& packed : exchange.all_gather(mine.bytes())) {
    for (WireReader in(packed, "the item heads of a rank"); !in.empty(); in.check()) {
      ItemPlace const item = stored.chunks[stored.payload_offsets.size()].item;
      stored.payload_offsets.push_back(in.number());
      std::uint64_t const record = in.number();
      std::uint64_t const record_bytes = in.number();
      if (record_bytes > 0)
        checkpoint.records.push_back(
            {item.file, record, record_bytes, item.offset_bytes, item.size_bytes, std::nullopt});
      objects[stored.payload_offsets.size() - 1] = in.get<bool>();
      auto strides = in.get<std::vector<Index>>();
      if (!strides.empty()) stored.strides[stored.payload_offsets.size() - 1] = std::move(strides);
    }
  }
  RESHARD_EXPECT(stored.payload_offsets.size() == count);
  if (std::ranges::count(objects, true) > 0) move_to_objects(stored, objects);
}

/// An object is a zip archive: its first and last record must stand where it begins and ends.
void check_archive(File const& file, StoredObject const& object) {
  constexpr std::string_view first = "PK\x03\x04";
  constexpr std::string_view last = "PK\x05\x06";
  constexpr std::size_t last_bytes = 22;
  std::string bytes(last_bytes, '\0');
  bool whole = object.item.size_bytes >= 2 * last_bytes;
  if (whole) {
    file.read_at(object.item.offset_bytes,
                 std::as_writable_bytes(std::span(bytes).first(first.size())));
    whole = bytes.starts_with(first);
    file.read_at(object.item.offset_bytes + object.item.size_bytes - last_bytes,
                 std::as_writable_bytes(std::span(bytes)));
    whole = whole && bytes.starts_with(last);
  }
  if (!whole)
    fail(ErrorKind::source,
         "{}: '{}' at byte {} with {} bytes is not a complete torch file. The file or its "
         ".metadata is damaged: copy the checkpoint again.",
         file.path().string(), object.name, object.item.offset_bytes, object.item.size_bytes);
}

/// Objects lie inside their files; tensors are checked by read_item_heads.
void check_objects(StoredTable const& stored, StampedFiles& files) {
  for (StoredObject const& object : stored.objects) {
    auto const file = files.open(object.item.file);
    std::uint64_t const bytes = file->size_bytes();
    if (object.item.offset_bytes <= bytes &&
        object.item.size_bytes <= bytes - object.item.offset_bytes) {
      check_archive(*file, object);
      continue;
    }
    fail(ErrorKind::source,
         "{}: '{}' is recorded at bytes [{}, +{}), the file has {}. The file was truncated: copy "
         "it again.",
         file->path().string(), object.name, object.item.offset_bytes, object.item.size_bytes,
         bytes);
  }
}

std::optional<std::int64_t> stated_iteration(pickle::Document const& document) {
  pickle::NodeId const node = document.find(document.root, "iteration");
  if (node == pickle::no_node || document.at(node).kind != pickle::Kind::integer)
    return std::nullopt;
  return document.at(node).integer;
}

/// Files of single ranks next to the items.
StateInventory state_beside(Directory const& directory) {
  StateInventory state;
  for (std::string const& name : directory.side_files) {
    if (is_rank_optimizer(name) && !state.optimizer)
      state.optimizer = {StateForm::in_rank_files, name};
    if (is_rank_rng(name) && !state.rng) state.rng = {StateForm::in_rank_files, name};
  }
  return state;
}

/// A folder with its `.metadata`.
struct Opened {
  Directory directory;
  Metadata metadata;
  DcpFormat const* format = nullptr;
};

Opened read_names(fs::path const& path, bool names_alone) {
  Opened opened;
  opened.directory = open_directory(path);
  opened.metadata = read_metadata(File::open_for_reading(opened.directory.folder / metadata_name));
  if (fs::path const& states = opened.directory.states; !states.empty())
    join_metadata(opened.metadata, read_metadata(File::open_for_reading(states / metadata_name)),
                  (states / metadata_name).string());
  opened.format =
      &format_of(names_alone ? Flavour::plain : flavour_of(opened.directory, opened.metadata));
  return opened;
}

Checkpoint checkpoint_of(Opened opened, std::vector<fs::path> files) {
  Checkpoint checkpoint;
  checkpoint.format = opened.format;
  checkpoint.names = opened.format->names();
  checkpoint.storage = Storage::chunks;
  checkpoint.chunked.item_files = true;
  Directory const& directory = opened.directory;
  checkpoint.root = directory.root;
  checkpoint.folder = directory.folder;
  checkpoint.place = (directory.folder / metadata_name).string();
  if (!directory.release) checkpoint.run.iteration = directory.iteration;
  checkpoint.chunked.has_common_file = directory.has_common_file;
  checkpoint.state.inventory = state_beside(directory);
  checkpoint.chunked.side_files = directory.side_files;
  checkpoint.files = std::move(files);
  checkpoint.chunked.paths = std::move(opened.metadata.planner_data);
  checkpoint.summary = fmt::format("{} in {}", counted(opened.metadata.chunks.size(), "chunk"),
                                   counted(checkpoint.files.size(), "file"));
  checkpoint.stored = std::move(static_cast<StoredTable&>(opened.metadata));
  return checkpoint;
}

}  // namespace

FormatWords DcpFormat::words() const {
  return {.help = "PyTorch distributed checkpoint, names kept",
          .sign = ".metadata (torch_dist, DCP)",
          .remains = {backend_name, common_name, "*.distcp"}};
}

bool DcpFormat::probe(fs::path const& path) const { return looks_like_dcp(path); }

std::string DcpFormat::why_incomplete(fs::path const& path) const {
  if (is_accelerate_save(path)) {
    for (std::string_view const part : {accelerate_weights, accelerate_states})
      if (sees_folder(path / part) && !sees_file(path / part / metadata_name))
        return fmt::format("{} has no {}, which is written last", part, metadata_name);
    return "";
  }
  if (!sees_file(path / metadata_name))
    return fmt::format("has no {}, which is written last", metadata_name);
  if (sees_file(path / common_name) && !sees_file(path / backend_name))
    return fmt::format("has {} and no {} yet", common_name, backend_name);
  return "";
}

Checkpoint DcpFormat::open(fs::path const& path, OpenChoice const& choice,
                           HeaderExchange const& exchange) const {
  Opened opened;
  std::vector<fs::path> paths;
  exchange.together_seeing([&] {
    opened = read_names(path, choice.names_alone);
    paths = item_paths(opened.directory, opened.metadata);
  });
  DcpFormat const& format = *opened.format;
  if (choice.without_heads) return checkpoint_of(std::move(opened), std::move(paths));
  StampedFiles files(paths);
  exchange.together([&] {
    if (exchange.rank() == 0) check_objects(opened.metadata, files);
  });
  std::shared_ptr<CommonState const> common;
  exchange.together_seeing(
      [&] { common = format.stored_common(opened.directory, opened.metadata); });
  auto const flattened = std::move(opened.metadata.flattened);
  Checkpoint checkpoint = checkpoint_of(std::move(opened), paths);
  checkpoint.chunked.common = std::move(common);
  read_item_heads(checkpoint, files,
                  choice.torchao_objects ? TorchaoTensors::objects : TorchaoTensors::refused,
                  exchange);
  if (choice.compare_files) refuse_copied_boxes(checkpoint, files, exchange);
  format.add_states(checkpoint, files, exchange);
  if (checkpoint.names == NameOwner::family && choice.rank_states)
    checkpoint.state.torch_optimizer =
        read_named_settings(checkpoint, choice.prefix, files, exchange);
  files.give_stamps(checkpoint, exchange);
  exchange.together([&] { unflatten(checkpoint, flattened); });
  exchange.together_seeing([&] {
    if (checkpoint.chunked.common == nullptr)
      checkpoint.chunked.common = format.made_common(checkpoint);
    for (std::string const& absent : absent_parts(checkpoint))
      checkpoint.warnings.push_back(fmt::format("{}: {}", checkpoint.folder.string(), absent));
  });
  return checkpoint;
}

Inspection DcpFormat::describe(fs::path const& path, megatron::UserSizes const& /*sizes*/) const {
  Opened opened = read_names(path, false);
  std::vector<fs::path> files;
  for (std::size_t f = 0; f < opened.metadata.files.size(); ++f)
    files.push_back(
        (f < opened.metadata.first_joined ? opened.directory.folder : opened.directory.states) /
        opened.metadata.files[f]);
  bool const by_backend = opened.directory.has_backend_file;
  fs::path const folder = opened.directory.folder;
  DcpFormat const& format = *opened.format;
  Json args;
  if (auto const common = format.stored_common(opened.directory, opened.metadata)) {
    RunRecord const record = common_record(*common);
    args = megatron::args_as_json(record.document(), megatron::find_args(record.document()));
  }
  Checkpoint checkpoint = checkpoint_of(std::move(opened), std::move(files));
  if (format.view_needs_common()) checkpoint.chunked.common = format.made_common(checkpoint);
  Inspection result = inspection(path, checkpoint, by_backend, args);
  result.folder = folder;
  result.args = std::move(args);
  return result;
}

StoredView DcpFormat::view(Checkpoint const& checkpoint, std::string const& prefix) const {
  return sorted_keys(checkpoint, prefix);
}

StateInventory DcpFormat::inventory(Checkpoint const& checkpoint, StoredView const& view) const {
  return named_inventory(checkpoint, view);
}

std::optional<RunRecord> DcpFormat::run_record(Checkpoint const& checkpoint) const {
  if (checkpoint.state.torch_optimizer != nullptr)
    return empty_record(checkpoint.place, checkpoint.run.iteration.value_or(
                                              whole_steps(*checkpoint.state.torch_optimizer)));
  if (checkpoint.chunked.common == nullptr) return std::nullopt;
  RunRecord record = common_record(*checkpoint.chunked.common);
  record.edited = true;  // no file holds it
  record.folder_iteration = checkpoint.run.iteration;
  record.iteration =
      stated_iteration(record.document()).value_or(checkpoint.run.iteration.value_or(0));
  return record;
}

std::optional<huggingface::Folder> DcpFormat::model_files(Checkpoint const& checkpoint) const {
  auto found = carried_in(checkpoint.folder, checkpoint.root);
  if (found) return found;
  found = model_files_beside(checkpoint.folder);
  bool const of_accelerate = checkpoint.folder.filename() == accelerate_weights;
  return found || !of_accelerate ? found : model_files_beside(checkpoint.folder.parent_path());
}

TargetTraits DcpFormat::target() const {
  return {.storage = Storage::chunks,
          .mapped = false,
          .any_names = true,
          .objects = true,
          .carries_state = true,
          .masters_alone = true};
}

void DcpFormat::lay_out(MappedTarget const& job, TargetDraft& draft) const {
  lay_out_mapped(job, draft);
}

void DcpFormat::lay_out_named(NamedTarget const& job, TargetDraft& draft) const {
  lay_out_kept_keys(job, {}, draft);
}

}  // namespace reshard::dcp
