#include "tests/support/sample_checkpoints.hpp"

#include <algorithm>

#include "core/base/hash/crc32.hpp"
#include "core/base/hash/crc64.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/containers/dcp/item.hpp"
#include "core/containers/hdf5/container.hpp"
#include "core/containers/hdf5/keys.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/dcp/source.hpp"
#include "core/formats/megatron/headers/directory.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/writer.hpp"
#include "tests/support/sample_deepspeed.hpp"
#include "tests/support/sample_fsdp_ranks.hpp"

namespace reshard::test {

namespace fs = std::filesystem;

std::vector<std::byte> sample_bytes(std::uint64_t seed, std::uint64_t count) {
  constexpr std::uint64_t prime = 251;
  std::vector<std::byte> bytes(count);
  for (std::uint64_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>((i * 7 + i / prime * 3 + seed * 31 + 1) % prime);
  return bytes;
}

namespace {

SampleTensor tensor(std::string name, DType dtype, std::vector<Index> shape) {
  std::uint64_t elements = 1;
  for (Index const extent : shape) elements *= static_cast<std::uint64_t>(extent);
  std::uint64_t const seed = std::hash<std::string>()(name);
  return {std::move(name), dtype, std::move(shape),
          sample_bytes(seed % 1000, elements * static_cast<std::uint64_t>(bits(dtype)) / 8)};
}

}  // namespace

std::vector<SampleTensor> usual_tensors(std::string const& prefix) {
  return {tensor(prefix + "decoder.layers.0.weight", DType::bf16, {6, 4}),
          tensor(prefix + "decoder.layers.0.bias", DType::f32, {5}),
          tensor(prefix + "decoder.layers.1.codes", DType::u8, {3, 7}),
          tensor(prefix + "decoder.final", DType::i64, {2, 2})};
}

namespace {

constexpr std::size_t cut_tensor = 0;

void append(std::string& to, std::span<std::byte const> bytes) {
  to.append(reinterpret_cast<char const*>(bytes.data()), bytes.size());
}

constexpr std::string_view sample_config = "{\"model_type\": \"sample\"}\n";

void write_config(fs::path const& folder) {
  fs::create_directories(folder);
  write_text_file(folder / "config.json", sample_config);
}

// --- safetensors
// ---------------------------------------------------------------------------------------------------

void write_safetensors(fs::path const& path, std::span<SampleTensor const> tensors,
                       std::vector<std::pair<std::string, std::string>> const& metadata) {
  std::vector<TensorSpec> specs;
  for (SampleTensor const& one : tensors) specs.push_back({one.name, one.dtype, one.shape});
  safetensors::FilePlan const plan = safetensors::plan_file(specs, metadata);
  std::string bytes = plan.header;
  bytes.resize(plan.size_bytes);
  for (std::size_t t = 0; t < tensors.size(); ++t)
    std::ranges::transform(tensors[t].bytes,
                           bytes.begin() + static_cast<std::ptrdiff_t>(plan.offset_bytes[t]),
                           [](std::byte byte) { return static_cast<char>(byte); });
  write_text_file(path, bytes);
}

SampleCheckpoint make_two_shards(fs::path const& folder, std::string const& stem) {
  SampleCheckpoint sample{
      folder, usual_tensors("model."), {}, folder / (stem + ".safetensors.index.json")};
  write_config(folder);
  std::span<SampleTensor const> const all = sample.tensors;
  std::vector<std::string> const names{stem + "-00001-of-00002.safetensors",
                                       stem + "-00002-of-00002.safetensors"};
  Json map = Json::object();
  for (std::size_t f = 0; f < names.size(); ++f) {
    auto const part = all.subspan(f * 2, 2);
    write_safetensors(folder / names[f], part, {{"format", "pt"}});
    for (SampleTensor const& one : part) map.set(one.name, names[f]);
    sample.files.push_back(folder / names[f]);
  }
  write_text_file(sample.written_last, Json().set("weight_map", map).dump(2));
  return sample;
}

SampleCheckpoint make_huggingface(fs::path const& folder) {
  return make_two_shards(folder, "model");
}

SampleCheckpoint make_mistral(fs::path const& folder) {
  SampleCheckpoint sample = make_two_shards(folder, "consolidated");
  write_text_file(
      folder / huggingface::params_name,
      R"({"dim": 8, "n_layers": 1, "hidden_dim": 16, "n_heads": 2, "vocab_size": 32, "norm_eps": 1e-05})");
  return sample;
}

/// Rows [begin, end) of a matrix.
SampleTensor rows_of(SampleTensor const& one, Index begin, Index end) {
  std::size_t const row = one.bytes.size() / static_cast<std::size_t>(one.shape[0]);
  auto const at = [&](Index index) {
    return one.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(index) * row);
  };
  SampleTensor part{one.name, one.dtype, one.shape, {at(begin), at(end)}};
  part.shape[0] = end - begin;
  return part;
}

/// Each file holds a half of the first tensor, and two of the others.
std::vector<std::vector<SampleTensor>> halves_of(std::vector<SampleTensor> const& tensors) {
  std::vector<std::vector<SampleTensor>> files(2);
  Index const rows = tensors[cut_tensor].shape[0];
  for (Index f = 0; f < 2; ++f)
    files[static_cast<std::size_t>(f)] = {
        rows_of(tensors[cut_tensor], f * rows / 2, (f + 1) * rows / 2)};
  for (std::size_t t = 1; t < tensors.size(); ++t) files[t % 2].push_back(tensors[t]);
  return files;
}

SampleCheckpoint make_boxed(fs::path const& folder) {
  SampleCheckpoint sample{folder, usual_tensors(""), {}, {}};
  write_config(folder);
  auto const files = halves_of(sample.tensors);
  for (std::size_t f = 0; f < files.size(); ++f) {
    Json info = Json::object();
    for (SampleTensor const& one : files[f]) {
      Json offsets = Json::array();
      for (std::size_t d = 0; d < one.shape.size(); ++d)
        offsets.push(d == 0 && &one == &files[f].front() ? static_cast<Index>(f) * one.shape[0]
                                                         : Index{0});
      info.set(one.name, Json().set("saved_offsets", offsets));
    }
    sample.files.push_back(folder / fmt::format("shard-{:05}-model.safetensors", f));
    write_safetensors(sample.files.back(), files[f], {{"DCP_SHARDING_INFO", info.dump()}});
  }
  return sample;
}

// --- distributed checkpoints
// --------------------------------------------------------------------------------------

/// A .distcp file in the making.
struct Items {
  std::string name;
  std::string bytes;
};

ItemPlace add_item(Items& file, std::uint32_t number, SampleTensor const& box) {
  dcp::ItemFrame const frame = dcp::item_frame(box.dtype, box.shape, crc32(box.bytes));
  std::uint64_t const begin = file.bytes.size();
  file.bytes += frame.head;
  append(file.bytes, box.bytes);
  file.bytes += frame.tail;
  return {number, begin, file.bytes.size() - begin};
}

/// An object whose value is a dict of one number.
StoredObject add_object(Items& file, std::uint32_t number, std::string name) {
  pickle::Document document;
  document.root = document.add_dict();
  document.set(document.root, "value", document.add_int(7));
  std::string const bytes = dcp::torch_file_bytes(document, "archive");
  std::uint64_t const begin = file.bytes.size();
  file.bytes += bytes;
  return {std::move(name), {number, begin, bytes.size()}};
}

SampleCheckpoint make_dcp(fs::path const& folder, std::vector<SampleTensor> tensors,
                          std::vector<std::string> const& objects) {
  SampleCheckpoint sample{folder, std::move(tensors), {}, folder / dcp::metadata_name};
  fs::create_directories(folder);
  std::vector<Items> files{{"__0_0.distcp", {}}, {"__1_0.distcp", {}}};
  dcp::Metadata metadata;
  for (SampleTensor const& one : sample.tensors) {
    bool const cut = &one == &sample.tensors[cut_tensor];
    auto const first = narrow<std::uint32_t>(metadata.chunks.size());
    std::vector<SampleTensor> const boxes =
        cut ? std::vector{rows_of(one, 0, one.shape[0] / 2),
                          rows_of(one, one.shape[0] / 2, one.shape[0])}
            : std::vector{one};
    std::vector<Index> offsets(one.shape.size(), 0);
    for (SampleTensor const& box : boxes) {
      auto const file = narrow<std::uint32_t>(metadata.chunks.size() % files.size());
      metadata.chunks.push_back({metadata.lists.add(offsets), metadata.lists.add(box.shape),
                                 add_item(files[file], file, box)});
      if (!offsets.empty()) offsets[0] += box.shape[0];
    }
    metadata.tensors.push_back(
        {one.name, one.dtype, one.shape, first, narrow<std::uint32_t>(boxes.size())});
  }
  for (std::string const& name : objects) metadata.objects.push_back(add_object(files[0], 0, name));
  for (Items const& file : files) {
    metadata.files.push_back(file.name);
    sample.files.push_back(folder / file.name);
    write_text_file(sample.files.back(), file.bytes);
  }
  write_text_file(sample.written_last, dcp::write_metadata(metadata));
  return sample;
}

SampleCheckpoint make_plain_dcp(fs::path const& folder) {
  SampleCheckpoint sample = make_dcp(folder, usual_tensors("model."), {});
  write_config(folder);
  return sample;
}

/// As Megatron Lite leaves it beside its items.
SampleCheckpoint make_plain_dcp_with_state(fs::path const& folder) {
  SampleCheckpoint sample = make_plain_dcp(folder);
  for (char const* name : {"optimizer_rank_0.pt", "rng_state_rank_00000.pt"})
    write_text_file(folder / name, "state");
  return sample;
}

SampleCheckpoint make_torch_dist(fs::path const& folder, std::vector<SampleTensor> tensors,
                                 std::vector<std::string> const& objects) {
  SampleCheckpoint sample = make_dcp(folder, std::move(tensors), objects);
  write_config(folder / huggingface::carried_name);
  pickle::Document common;
  common.root = common.add_dict();
  common.set(common.root, "args", megatron::add_namespace(common, {{"num_layers", Json(2)}}));
  common.set(common.root, "iteration", common.add_int(7));
  write_text_file(folder / dcp::common_name, dcp::torch_file_bytes(common, "common"));
  write_text_file(folder / dcp::backend_name, dcp::backend_json());
  return sample;
}

SampleCheckpoint make_torch_dist(fs::path const& folder) {
  return make_torch_dist(folder, usual_tensors(""), {});
}

SampleCheckpoint make_torch_dist_with_state(fs::path const& folder) {
  std::vector<SampleTensor> tensors = usual_tensors("");
  tensors.push_back(tensor("optimizer.state.exp_avg.decoder.layers.0.weight", DType::f32, {6, 4}));
  return make_torch_dist(folder, tensors, {"rng_state/shard_0_1"});
}

SampleCheckpoint make_fsdp(fs::path const& folder) {
  SampleCheckpoint sample = make_dcp(folder, usual_tensors("model.module."), {});
  write_config(folder / huggingface::carried_name);
  return sample;
}

SampleCheckpoint make_fsdp_with_state(fs::path const& folder) {
  std::vector<SampleTensor> tensors = usual_tensors("model.module.");
  tensors.push_back(tensor("optimizer.state.module.module.module.decoder.layers.0.weight.exp_avg",
                           DType::f32, {6, 4}));
  return make_dcp(folder, tensors, {"rng_state"});
}

// --- HDF5
// ---------------------------------------------------------------------------------------------------------

/// A part of a container: its tensors, what it carries besides, and what it says of itself.
struct Part {
  std::span<SampleTensor const> tensors;
  std::vector<std::pair<std::string, std::string>> objects;
  hdf5::RootAttributes attributes;
  std::vector<std::string> axes;  ///< of matrices
};

void write_part(fs::path const& path, Part const& part) {
  std::vector<hdf5::DatasetSpec> datasets;
  std::vector<hdf5::ObjectSpec> objects;
  std::vector<std::uint64_t> digests;
  for (SampleTensor const& one : part.tensors) {
    datasets.push_back({one.name, one.dtype, one.shape});
    if (one.shape.size() == part.axes.size()) datasets.back().axes = part.axes;
    digests.push_back(crc64(one.bytes));
  }
  for (auto const& [name, text] : part.objects) {
    objects.push_back({name, text.size()});
    digests.push_back(crc64(std::as_bytes(std::span(text))));
  }
  hdf5::ContainerPlan const plan = hdf5::plan_container(datasets, objects, part.attributes);
  File const file = File::create(path);
  file.resize(plan.size_bytes);
  for (std::size_t t = 0; t < part.tensors.size(); ++t)
    file.write_at(plan.offset_bytes[t], part.tensors[t].bytes);
  for (std::size_t o = 0; o < objects.size(); ++o)
    file.write_at(plan.object_offset_bytes[o], std::as_bytes(std::span(part.objects[o].second)));
  for (FileSegment const& piece : hdf5::finished_frame(datasets, objects, part.attributes, digests))
    file.write_at(piece.offset_bytes, std::as_bytes(std::span(piece.bytes)));
}

SampleCheckpoint make_hdf5(fs::path const& folder, bool with_state) {
  SampleCheckpoint sample{folder, usual_tensors("model."), {}, {}};
  write_config(folder);
  for (std::size_t f = 0; f < 2; ++f) {
    Part part;
    part.tensors = std::span(sample.tensors).subspan(f * 2, 2);
    if (with_state && f == 0) part.objects = {{"rng_state/0", "sixteen bytes .."}};
    part.attributes = {{std::string(hdf5::map_key), ""},
                       {std::string(hdf5::names_key), std::string(hdf5::stored_names)},
                       {std::string(hdf5::part_key), std::to_string(f + 1)},
                       {std::string(hdf5::parts_key), "2"}};
    sample.files.push_back(folder / fmt::format("model-0000{}-of-00002.h5", f + 1));
    write_part(sample.files.back(), part);
  }
  return sample;
}

SampleCheckpoint make_hdf5(fs::path const& folder) { return make_hdf5(folder, false); }
SampleCheckpoint make_hdf5_with_state(fs::path const& folder) { return make_hdf5(folder, true); }

/// Logical tensors with their config and args inside, in one file.
SampleCheckpoint make_logical_hdf5(fs::path const& folder) {
  SampleCheckpoint sample{folder, usual_tensors(""), {folder / hdf5::single_file_name}, {}};
  fs::create_directories(folder);
  write_part(sample.files.front(),
             {.tensors = sample.tensors,
              .objects = {{std::string(hdf5::args_name), "{\"num_layers\": 2}"},
                          {"config.json", std::string(sample_config)}},
              .attributes = {{std::string(hdf5::map_key), "sample"},
                             {std::string(hdf5::names_key), std::string(hdf5::logical_names)},
                             {std::string(hdf5::part_key), "1"},
                             {std::string(hdf5::parts_key), "1"},
                             {std::string(hdf5::prediction_layers_key), "1"},
                             {std::string(hdf5::vocab_key), "50"}},
              .axes = {"rows", "columns"}});
  return sample;
}

// --- Megatron
// -----------------------------------------------------------------------------------------------------

/// Two tensor-parallel ranks of two pipeline stages.
constexpr megatron::MeshSizes sample_mesh{.tp = 2, .pp = 2};

/// A layer for each stage, which every file numbers from 0.
std::vector<SampleTensor> tensors_of_rank(std::string const& rank, int pp) {
  std::vector<SampleTensor> tensors = {
      tensor(rank + "embedding.word_embeddings.weight", DType::bf16, {8, 4}),
      tensor(rank + "decoder.layers.0.weight", DType::bf16, {6, 4}),
      tensor(rank + "decoder.layers.0.bias", DType::f32, {5}),
      tensor(rank + "decoder.layers.0.codes", DType::u8, {3, 7}),
      tensor(rank + "decoder.final", DType::i64, {2, 2})};
  if (pp == 0) tensors.pop_back();
  if (pp == 1) tensors.erase(tensors.begin());
  for (SampleTensor& one : tensors) one.name.erase(0, rank.size());
  return tensors;
}

void write_shard(fs::path const& path, megatron::ShardContent const& content,
                 std::span<SampleTensor const> tensors) {
  megatron::ShardDocument shard = megatron::build_shard(content);
  TorchFilePlan const plan = plan_torch_file(shard.document, megatron::model_archive_name);
  fs::create_directories(path.parent_path());
  File const file = File::create(path);
  file.resize(plan.size_bytes);
  std::vector<std::uint32_t> sums;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    file.write_at(plan.storages[i].payload_offset_bytes, tensors[i].bytes);
    sums.push_back(crc32(tensors[i].bytes));
  }
  finish_torch_file(file, plan, sums);
}

SampleCheckpoint make_megatron(fs::path const& folder, bool with_state) {
  SampleCheckpoint sample{folder, {}, {}, {}};
  write_config(folder / huggingface::carried_name);
  pickle::Document state;
  pickle::NodeId const value = state.add_dict();
  state.set(value, "seed", state.add_int(3));
  for (megatron::ShardPlace const& place : megatron::shard_places(sample_mesh)) {
    std::string const name =
        megatron::format_shard_name(place, sample_mesh, megatron::NameStyle::megatron);
    std::vector<SampleTensor> const tensors = tensors_of_rank(name, place.pp);
    megatron::ShardContent content;
    content.args = {{"num_layers", Json(2)},
                    {"tensor_model_parallel_size", Json(sample_mesh.tp)},
                    {"pipeline_model_parallel_size", Json(sample_mesh.pp)},
                    {"num_experts", Json()}};
    content.iteration = 7;
    content.chunks.emplace_back();
    for (SampleTensor const& one : tensors)
      content.chunks.back().push_back({.name = one.name, .dtype = one.dtype, .shape = one.shape});
    if (with_state) content.carried = {{"optimizer", &state, value}, {"rng_state", &state, value}};
    sample.files.push_back(folder / name / megatron::model_file_name);
    write_shard(sample.files.back(), content, tensors);
    for (SampleTensor const& one : tensors)
      sample.tensors.push_back({name + "/" + one.name, one.dtype, one.shape, one.bytes});
  }
  std::ranges::sort(sample.files);
  return sample;
}

SampleCheckpoint make_megatron(fs::path const& folder) { return make_megatron(folder, false); }
SampleCheckpoint make_megatron_with_state(fs::path const& folder) {
  return make_megatron(folder, true);
}

}  // namespace

std::vector<SampleMaker> sample_makers() {
  auto const format = [](FormatId id) { return &format_of(id); };
  return {
      {.name = "megatron",
       .format = format(FormatId::megatron),
       .make = make_megatron,
       .make_with_state = make_megatron_with_state,
       .has_optimizer = true,
       .has_rng = true,
       .has_tracker = true},
      {.name = "huggingface", .format = format(FormatId::huggingface), .make = make_huggingface},
      {.name = "mistral",
       .format = format(FormatId::mistral),
       .make = make_mistral,
       .config_inside = true},
      {.name = "dcp",
       .format = format(FormatId::dcp),
       .make = make_plain_dcp,
       .make_with_state = make_plain_dcp_with_state,
       .has_optimizer = true,
       .has_rng = true,
       .has_tracker = true},
      {.name = "torch_dist",
       .format = format(FormatId::torch_dist),
       .make = make_torch_dist,
       .make_with_state = make_torch_dist_with_state,
       .has_optimizer = true,
       .has_rng = true,
       .has_tracker = true},
      {.name = "fsdp_dtensor",
       .format = format(FormatId::fsdp_dtensor),
       .make = make_fsdp,
       .make_with_state = make_fsdp_with_state,
       .has_optimizer = true,
       .has_rng = true,
       .has_tracker = true},
      {.name = "hdf5",
       .format = format(FormatId::hdf5),
       .make = make_hdf5,
       .make_with_state = make_hdf5_with_state},
      {.name = "logical_hdf5",
       .format = format(FormatId::hdf5),
       .make = make_logical_hdf5,
       .config_inside = true},
      {.name = "deepspeed",
       .format = format(FormatId::deepspeed),
       .make = make_deepspeed,
       .make_with_state = make_deepspeed_with_state,
       .has_optimizer = true},
      {.name = "fsdp_ranks",
       .format = format(FormatId::fsdp_ranks),
       .make = make_fsdp_ranks,
       .make_with_state = make_fsdp_ranks_with_state,
       .has_optimizer = true,
       .has_rng = true},
      {.name = "boxed_safetensors", .format = &dcp::boxed_safetensors(), .make = make_boxed},
  };
}

}  // namespace reshard::test
