#include "core/formats/fsdp_ranks/held_tensor.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include <fmt/ranges.h>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/torch/torch_types.hpp"
#include "core/formats/fsdp_ranks/rank_mesh.hpp"

namespace reshard::fsdp_ranks {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::Node;
using pickle::NodeId;

/// Cuts of hostile files shall not make lists of boxes longer than those of any mesh.
constexpr Index most_parts = Index{1} << 16;

}  // namespace

class HeldTensors::Reader {
 public:
  Reader(File const& file, TorchFile const& torch, Index rank)
      : file_(file),
        torch_(torch),
        document_(torch.document),
        path_(file.path().string()),
        rank_(rank) {}

  std::optional<HeldTensor> read(NodeId id, std::string name) {
    name_ = std::move(name);
    id = without_parameter(id);
    if (document_.at(id).kind == Kind::tensor) return plain(id);
    Node const& node = document_.at(id);
    if (node.kind != Kind::reduce) return std::nullopt;
    auto const [module, function] = document_.class_of(id);
    if (module == "torch._tensor" && function == "_rebuild_from_type_v2") return of_type(id);
    if (function == "ShardedTensor") return sharded(node.state);
    if (module.starts_with("torch") && function.starts_with("_rebuild"))
      refuse(
          fmt::format("is made by {}.{}, and is not a plain tensor, a DTensor or a "
                      "ShardedTensor. Save the model without quantised or sparse tensors",
                      module, function));
    return std::nullopt;
  }

  std::vector<MeshForm> const& meshes() const { return meshes_; }
  std::vector<std::vector<Index>> const& places() const { return places_; }

 private:
  [[noreturn]] void refuse(std::string_view why) const {
    fail(ErrorKind::source, "{}: '{}' {}.", path_, without_controls(name_), why);
  }
  [[noreturn]] void damaged(std::string_view what) const {
    refuse(
        fmt::format("{}. The file is damaged, or of a release of PyTorch that is not known: "
                    "restore it, or save again",
                    what));
  }

  std::vector<NodeId> const& items(NodeId id) const { return document_.at(id).items; }

  NodeId without_parameter(NodeId id) const {
    Node const& node = document_.at(id);
    if (node.kind != Kind::reduce || node.arguments == no_node) return id;
    auto const [module, function] = document_.class_of(id);
    bool const parameter = module == "torch._utils" && function.starts_with("_rebuild_parameter");
    return parameter && !items(node.arguments).empty() ? items(node.arguments).front() : id;
  }

  FileTensor stored(NodeId id) const {
    return file_tensor(torch_, document_.tensors[document_.at(id).index], "");
  }

  HeldTensor plain(NodeId id) const {
    HeldTensor result;
    result.parts.push_back({{}, stored(id)});
    result.form = {.name = name_,
                   .dtype = result.parts.front().tensor.dtype,
                   .shape = result.parts.front().tensor.shape};
    return result;
  }

  /// (function, class, arguments, state): a subclass of torch.Tensor.
  HeldTensor of_type(NodeId id) {
    NodeId const arguments = document_.at(id).arguments;
    if (items(arguments).size() != 4) damaged("is not described by a class and its state");
    NodeId const type = items(arguments)[1];
    auto const [module, name] = document_.class_of(type);
    if (name == "DTensor") return placed(items(arguments)[2], items(arguments)[3]);
    if (name == "ShardedTensor") return sharded(items(arguments)[3]);
    refuse(
        fmt::format("is a {}.{}, and not a plain tensor, a DTensor or a ShardedTensor. Save the "
                    "model without quantised tensors or other classes of them",
                    module, name));
  }

  NodeId attribute(NodeId object, std::string_view key) const {
    return fsdp_ranks::attribute(document_, object, key);
  }

  std::vector<Index> sizes(NodeId id, std::string_view what) const {
    auto const found = integers_in(document_, id);
    if (!found || std::ranges::any_of(*found, [](Index size) { return size < 0; }))
      damaged(fmt::format("has no list of sizes as its {}", what));
    (void)checked_volume(*found, ErrorKind::source, fmt::format("{}: '{}'", path_, name_));
    return *found;
  }

  HeldTensor placed(NodeId arguments, NodeId state) {
    NodeId const local = attribute(state, "_local_tensor");
    NodeId const spec = attribute(state, "_spec");
    if (local == no_node || spec == no_node) damaged("is a DTensor without _local_tensor or _spec");
    if (document_.at(local).kind != Kind::tensor)
      damaged("is a DTensor whose local part is no plain tensor");
    if (document_.at(arguments).kind != Kind::tuple || items(arguments).size() < 3)
      damaged("is a DTensor without a size");
    HeldTensor result;
    result.parts.push_back({{}, stored(local)});
    result.form = {.name = name_,
                   .dtype = result.parts.front().tensor.dtype,
                   .shape = sizes(items(arguments)[2], "size"),
                   .kind = TensorForm::Kind::placed};
    NodeId const mesh = attribute(spec, "mesh");
    if (mesh == no_node) damaged("is a DTensor without a mesh");
    result.form.mesh = mesh_number(mesh);
    NodeId const list = attribute(spec, "placements");
    if (list == no_node || document_.at(list).kind != Kind::tuple)
      damaged("is a DTensor without placements");
    for (NodeId const one : items(list)) result.form.placements.push_back(placement(one, result));
    check_placements(result.form);
    return result;
  }

  Placement placement(NodeId id, HeldTensor const& of) const {
    auto const [module, name] = document_.class_of(id);
    if (name == "Replicate") return {};
    if (name.find("Partial") != std::string_view::npos)
      refuse(
          fmt::format("is {}: a sum that was not computed before it was saved. Save the model "
                      "outside of a training step",
                      name));
    if (name != "Shard" && name != "_StridedShard" && name != "StridedShard")
      damaged(fmt::format("has the placement {}.{}, which is not known", module, name));
    Placement result{Placement::Kind::shard};
    Index const dim = integer(id, "dim");
    if (dim < 0 || dim >= std::ssize(of.form.shape))
      damaged(fmt::format("is cut along dimension {} of {}", dim, of.form.shape.size()));
    result.dim = static_cast<int>(dim);
    if (name == "Shard") return result;
    result.kind = Placement::Kind::strided_shard;
    result.split_factor = integer(id, "split_factor");
    return result;
  }

  Index integer(NodeId object, std::string_view key) const {
    NodeId const id = attribute(object, key);
    if (id == no_node || document_.at(id).kind != Kind::integer)
      damaged(fmt::format("has a placement without a number '{}'", key));
    return document_.at(id).integer;
  }

  void check_placements(TensorForm const& form) const {
    MeshForm const& mesh = meshes_[form.mesh];
    if (form.placements.size() != mesh.sizes.size())
      damaged(fmt::format("has {} placements on a mesh of {} axes", form.placements.size(),
                          mesh.sizes.size()));
    Index parts = 1;
    for (Placement const& one : form.placements)
      if (one.split_factor < 1 || __builtin_mul_overflow(parts, one.split_factor, &parts) ||
          parts > most_parts)
        damaged(fmt::format("is cut by a strided shard of {} parts", one.split_factor));
  }

  std::size_t mesh_number(NodeId id) {
    auto const [known, is_new] = mesh_of_.try_emplace(id, meshes_.size());
    if (!is_new) return known->second;
    RankMesh mesh = read_rank_mesh(document_, id, rank_, fmt::format("{}: '{}'", path_, name_),
                                   [this](std::uint32_t tensor) { return integers(tensor); });
    for (std::size_t m = 0; m < meshes_.size(); ++m)
      if (meshes_[m] == mesh.form && places_[m] == mesh.place) return known->second = m;
    meshes_.push_back(std::move(mesh.form));
    places_.push_back(std::move(mesh.place));
    return known->second;
  }

  /// The elements of a tensor of integers.
  std::vector<Index> integers(std::uint32_t number) const {
    FileTensor const tensor = file_tensor(torch_, document_.tensors[number], "");
    bool const wide = tensor.dtype == DType::i64;
    if ((!wide && tensor.dtype != DType::i32) || !tensor.strides.empty() ||
        tensor.size_bytes > most_mesh_bytes)
      damaged(fmt::format("has a mesh of {} bytes of {}", tensor.size_bytes,
                          reshard::name(tensor.dtype)));
    std::vector<std::byte> bytes(tensor.size_bytes);
    file_.read_at(tensor.offset_bytes, bytes);
    std::vector<Index> result;
    for (std::size_t at = 0; at < bytes.size(); at += wide ? 8 : 4) {
      std::int64_t value = 0;
      std::int32_t narrow_value = 0;
      if (wide)
        std::memcpy(&value, &bytes[at], sizeof value);
      else
        std::memcpy(&narrow_value, &bytes[at], sizeof narrow_value);
      result.push_back(wide ? value : narrow_value);
    }
    return result;
  }

  HeldTensor sharded(NodeId state) {
    NodeId const local = part_of_sharded(state, "_local_shards", 0);
    NodeId const metadata = part_of_sharded(state, "_metadata", 1);
    if (local == no_node || metadata == no_node)
      damaged("is a ShardedTensor without shards or metadata");
    HeldTensor result;
    NodeId const size = attribute(metadata, "size");
    if (size == no_node) damaged("is a ShardedTensor without a size");
    result.form = {.name = name_, .shape = sizes(size, "size"), .kind = TensorForm::Kind::boxed};
    result.form.dtype = dtype_of(metadata);
    for (NodeId const one : items(local)) {
      NodeId const tensor = attribute(one, "tensor");
      NodeId const place = attribute(one, "metadata");
      if (tensor == no_node || place == no_node || document_.at(tensor).kind != Kind::tensor)
        damaged("has a shard that is no plain tensor with metadata");
      HeldPart part;
      part.tensor = stored(tensor);
      NodeId const offsets = attribute(place, "shard_offsets");
      if (offsets == no_node) damaged("has a shard without shard_offsets");
      part.offsets = sizes(offsets, "shard_offsets");
      check_part(result.form, part);
      result.parts.push_back(std::move(part));
    }
    return result;
  }

  /// A member of the state of a ShardedTensor: a dict, or a tuple in the order of its __getstate__.
  NodeId part_of_sharded(NodeId state, std::string_view key, std::size_t place) const {
    if (NodeId const found = attribute(state, key); found != no_node) return found;
    bool const tuple = state != no_node && document_.at(state).kind == Kind::tuple;
    return tuple && items(state).size() > place ? items(state)[place] : no_node;
  }

  DType dtype_of(NodeId metadata) const {
    NodeId const properties = attribute(metadata, "tensor_properties");
    NodeId dtype = attribute(properties, "dtype");
    if (dtype == no_node && properties != no_node) {  // a tuple in the order of its __getstate__
      NodeId const state = document_.at(properties).state;
      if (state != no_node && document_.at(state).kind == Kind::tuple && !items(state).empty())
        dtype = items(state).front();
    }
    auto const [module, name] = document_.class_of(dtype);
    auto const found = module == "torch" ? pickle::dtype_from_torch_name(name) : std::nullopt;
    if (!found) damaged("is a ShardedTensor without a dtype that is known");
    return *found;
  }

  void check_part(TensorForm const& form, HeldPart const& part) const {
    bool good = part.tensor.dtype == form.dtype && part.offsets.size() == form.shape.size() &&
                part.tensor.shape.size() == form.shape.size();
    for (std::size_t d = 0; good && d < form.shape.size(); ++d)
      good = part.offsets[d] <= form.shape[d] &&
             part.tensor.shape[d] <= form.shape[d] - part.offsets[d];
    if (!good)
      damaged(fmt::format("has a shard {} ({}) at ({}) in {} ({})",
                          reshard::name(part.tensor.dtype), fmt::join(part.tensor.shape, ", "),
                          fmt::join(part.offsets, ", "), reshard::name(form.dtype),
                          fmt::join(form.shape, ", ")));
  }

  File const& file_;
  TorchFile const& torch_;
  Document const& document_;
  std::string path_;
  Index rank_;
  std::string name_;  ///< of the tensor that is read
  std::map<NodeId, std::size_t> mesh_of_;
  std::vector<MeshForm> meshes_;
  std::vector<std::vector<Index>> places_;
};

HeldTensors::HeldTensors(File const& file, TorchFile const& torch, Index rank)
    : reader_(std::make_unique<Reader>(file, torch, rank)) {}
HeldTensors::~HeldTensors() = default;

std::optional<HeldTensor> HeldTensors::read(NodeId node, std::string name) {
  return reader_->read(node, std::move(name));
}
std::vector<MeshForm> const& HeldTensors::meshes() const { return reader_->meshes(); }
std::vector<std::vector<Index>> const& HeldTensors::places() const { return reader_->places(); }

std::optional<double> number_in(File const& file, FileTensor const& tensor) {
  auto const read = [&](auto value) -> std::optional<double> {
    if (tensor.size_bytes != sizeof value) return std::nullopt;
    file.read_at(tensor.offset_bytes, std::as_writable_bytes(std::span(&value, 1)));
    return static_cast<double>(value);
  };
  switch (tensor.dtype) {
    case DType::f32: return read(float{});
    case DType::f64: return read(double{});
    case DType::i32: return read(std::int32_t{});
    case DType::i64: return read(std::int64_t{});
    default: return std::nullopt;
  }
}

}  // namespace reshard::fsdp_ranks
