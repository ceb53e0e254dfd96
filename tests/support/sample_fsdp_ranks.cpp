#include "tests/support/sample_fsdp_ranks.hpp"

#include <numeric>

#include "core/base/files/file.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/containers/torch/torch_file.hpp"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using pickle::Document;
using pickle::NodeId;

constexpr Index ranks = 2;
constexpr Placement rows{Placement::Kind::shard, 0, 1};
constexpr Placement columns{Placement::Kind::shard, 1, 1};

std::vector<NodeId> integers(Document& document, std::vector<Index> const& values) {
  std::vector<NodeId> items;
  for (Index const value : values) items.push_back(document.add_int(value));
  return items;
}

std::vector<std::byte> bytes_of_ranks(Index count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * 8);
  for (Index rank = 0; rank < count; ++rank)
    bytes[static_cast<std::size_t>(rank) * 8] = static_cast<std::byte>(rank);
  return bytes;
}

Index product(std::vector<Index> const& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), Index{1}, std::multiplies());
}

/// What a rank has of a matrix or vector: ceil(n / 2) rows or columns, the last rank the rest.
SampleTensor part_of(SampleTensor const& whole, int dim, Index rank) {
  auto const axis = static_cast<std::size_t>(dim);
  Index const step = (whole.shape[axis] + ranks - 1) / ranks;
  Index const begin = rank * step;
  Index const end = std::min(begin + step, whole.shape[axis]);
  Index const outer = dim == 0 ? 1 : whole.shape[0];
  Index const row = dim == 0 && whole.shape.size() == 2 ? whole.shape[1] : 1;
  auto const bytes = static_cast<std::size_t>(row * bits(whole.dtype) / 8);
  SampleTensor part{whole.name, whole.dtype, whole.shape, {}};
  part.shape[axis] = end - begin;
  for (Index o = 0; o < outer; ++o) {
    auto const at =
        whole.bytes.begin() + static_cast<std::ptrdiff_t>(
                                  static_cast<std::size_t>(o * whole.shape[axis] + begin) * bytes);
    part.bytes.insert(
        part.bytes.end(), at,
        at + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(end - begin) * bytes));
  }
  return part;
}

NodeId add_part(RankFileDraft& draft, SampleTensor const& whole, Placement const& how, NodeId mesh,
                Index rank) {
  SampleTensor part = part_of(whole, how.dim, rank);
  NodeId const local = draft.add(part.dtype, part.shape, std::move(part.bytes));
  return draft.add_dtensor(local, whole.shape, mesh, {how});
}

fs::path file_name(std::string const& kind, Index rank) {
  return fmt::format("{}_world_size_{}_rank_{}.pt", kind, ranks, rank);
}

/// Rows of the first two tensors, columns of the last; the third is a buffer, whole on each rank.
void write_model(SampleCheckpoint& sample, Index rank) {
  RankFileDraft draft;
  Document& document = draft.document;
  document.root = document.add_dict();
  NodeId const mesh = draft.add_mesh({ranks}, rank);
  for (std::size_t t = 0; t < 4; ++t) {
    SampleTensor const& one = sample.tensors[t];
    NodeId const value = t == 2 ? draft.add(one.dtype, one.shape, one.bytes)
                                : add_part(draft, one, t == 3 ? columns : rows, mesh, rank);
    document.set(document.root, one.name, value);
  }
  sample.files.push_back(sample.path / file_name("model", rank));
  draft.write(sample.files.back());
}

/// State of the first of three parameters, after 7 steps.
void write_optimizer(SampleCheckpoint& sample, Index rank) {
  RankFileDraft draft;
  Document& document = draft.document;
  document.root = document.add_dict();
  NodeId const mesh = draft.add_mesh({ranks}, rank);
  NodeId const slots = document.add_dict();
  document.set(slots, "step", document.add_int(7));
  for (std::size_t t = 4; t < sample.tensors.size(); ++t) {
    std::string const& name = sample.tensors[t].name;
    document.set(slots, name.substr(name.rfind('.') + 1),
                 add_part(draft, sample.tensors[t], rows, mesh, rank));
  }
  NodeId const state = document.add_dict();
  NodeId const number = document.add_int(0);
  document.at(state).items = {number, slots};
  NodeId const group = document.add_dict();
  document.set(group, "lr", document.add_real(0.25));
  document.set(group, "params", document.add_list(integers(document, {0, 1, 2})));
  document.set(document.root, "state", state);
  document.set(document.root, "param_groups", document.add_list({group}));
  sample.files.push_back(sample.path / file_name("optim", rank));
  draft.write(sample.files.back());
}

}  // namespace

NodeId RankFileDraft::add(DType dtype, std::vector<Index> shape, std::vector<std::byte> bytes) {
  payloads.push_back(std::move(bytes));
  return document.add_tensor(dtype, std::move(shape));
}

NodeId RankFileDraft::add_mesh(std::vector<Index> const& sizes, Index rank) {
  std::vector<NodeId> axes;
  Index stride = product(sizes);
  for (Index const size : sizes) {
    stride /= size;
    NodeId const axis = document.add_dict();
    document.set(axis, "shape", document.add_tuple(integers(document, {size})));
    document.set(axis, "stride", document.add_tuple(integers(document, {stride})));
    states.axis = axis;
    axes.push_back(document.add_object("torch.distributed._mesh_layout", "_FlatLayout", axis));
  }
  NodeId const layout = document.add_dict();
  document.set(layout, "axes", document.add_tuple(std::move(axes)));
  NodeId const state = document.add_dict();
  states.layout = layout;
  states.mesh = state;
  document.set(state, "_layout",
               document.add_object("torch.distributed._mesh_layout", "_MeshLayout", layout));
  Index const count = product(sizes);
  document.set(state, "_rank_map", add(DType::i64, {count}, bytes_of_ranks(count)));
  document.set(state, "_rank", document.add_int(rank));
  return document.add_object("torch.distributed.device_mesh", "DeviceMesh", state);
}

NodeId RankFileDraft::add_old_mesh(std::vector<Index> const& sizes) {
  NodeId const state = document.add_dict();
  document.set(state, "mesh", add(DType::i64, sizes, bytes_of_ranks(product(sizes))));
  return document.add_object("torch.distributed.device_mesh", "DeviceMesh", state);
}

NodeId RankFileDraft::add_placement(Placement const& placement) {
  NodeId const state = document.add_dict();
  states.placement = state;
  char const* name = "Replicate";
  if (placement.kind != Placement::Kind::replicate) {
    name = "Shard";
    document.set(state, "dim", document.add_int(placement.dim));
  }
  if (placement.kind == Placement::Kind::strided_shard) {
    name = "_StridedShard";
    document.set(state, "split_factor", document.add_int(placement.split_factor));
  }
  return document.add_object("torch.distributed.tensor.placement_types", name, state);
}

NodeId RankFileDraft::add_dtensor(NodeId local, std::vector<Index> const& shape, NodeId mesh,
                                  std::vector<Placement> const& placements) {
  std::vector<NodeId> list;
  for (Placement const& one : placements) list.push_back(add_placement(one));
  NodeId const spec = document.add_dict();
  states.spec = spec;
  document.set(spec, "mesh", mesh);
  document.set(spec, "placements", document.add_tuple(std::move(list)));
  NodeId const slots = document.add_dict();
  states.slots = slots;
  document.set(slots, "_local_tensor", local);
  document.set(slots, "_spec",
               document.add_object("torch.distributed.tensor._dtensor_spec", "DTensorSpec", spec));
  NodeId const type = document.add_global("torch.distributed.tensor", "DTensor");
  NodeId const made = document.add_global("torch._utils", "_rebuild_wrapper_subclass");
  NodeId const size = document.add_tuple(integers(document, shape));
  NodeId const dtype = document.add_global("torch", "float32");
  NodeId const arguments = document.add_tuple({type, dtype, size, size});
  states.arguments = arguments;
  NodeId const nothing = document.add_none();
  NodeId const state = document.add_tuple({nothing, slots});
  NodeId const rebuild = document.add_global("torch._tensor", "_rebuild_from_type_v2");
  NodeId const all = document.add_tuple({made, type, arguments, state});
  return document.add({.kind = pickle::Kind::reduce, .callable = rebuild, .arguments = all});
}

void RankFileDraft::write(fs::path const& path, std::string archive) {
  if (archive.empty()) archive = path.stem().string();
  TorchFilePlan const plan = plan_torch_file(document, archive);
  File const file = File::create(path);
  file.resize(plan.size_bytes);
  std::vector<std::uint32_t> sums;
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    file.write_at(plan.storages[i].payload_offset_bytes, payloads[i]);
    sums.push_back(crc32(payloads[i]));
  }
  finish_torch_file(file, plan, sums);
}

SampleCheckpoint make_fsdp_ranks(fs::path const& folder) {
  SampleCheckpoint sample{folder, usual_tensors("model."), {}, {}};
  fs::create_directories(folder / huggingface::carried_name);
  write_text_file(folder / huggingface::carried_name / "config.json",
                  "{\"model_type\": \"sample\"}\n");
  write_text_file(folder / "fsdp_config.json", "{\"FSDP_version\": 2, \"world_size\": 2}");
  for (Index rank = 0; rank < ranks; ++rank) write_model(sample, rank);
  return sample;
}

SampleCheckpoint make_fsdp_ranks_with_state(fs::path const& folder) {
  SampleCheckpoint sample = make_fsdp_ranks(folder);
  SampleTensor const trained = sample.tensors.front();
  for (char const* slot : {"exp_avg", "exp_avg_sq"})
    sample.tensors.push_back(
        {fmt::format("optimizer.state.{}.{}", trained.name, slot), DType::f32, trained.shape,
         sample_bytes(static_cast<std::uint64_t>(slot[6]), trained.bytes.size() * 2)});
  for (Index rank = 0; rank < ranks; ++rank) {
    write_optimizer(sample, rank);
    RankFileDraft extra;
    extra.document.root = extra.document.add_dict();
    extra.write(folder / file_name("extra_state", rank));
  }
  return sample;
}

}  // namespace reshard::test
