#include "core/formats/torch_dist/dist_tensors.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/mcore/root.hpp"
#include "core/formats/torch_dist/keys.hpp"

namespace reshard {
namespace {

using Rows = std::vector<std::vector<Run>>;

constexpr std::string_view fsdp_module = "module.module.module.";

/// Whether the tensors under a stored name have something in a slot.
bool has_slot(TargetParts const& parts, StoredName const& name, SlotId slot) {
  return std::ranges::all_of(parts.side->tensors(name.entry), [&](TensorId tensor) {
    return parts.model->exists(parts.model->in_slot(tensor, slot));
  });
}

/// Every box that takes one run of each dimension, in row-major order.
void append_boxes(Rows const& rows, std::vector<TensorBox>& boxes) {
  std::vector<std::size_t> at(rows.size(), 0);
  for (auto const& runs : rows)
    if (runs.empty()) return;
  for (;;) {
    TensorBox box;
    for (std::size_t d = 0; d < rows.size(); ++d) {
      box.begin.push_back(rows[d][at[d]].begin);
      box.end.push_back(rows[d][at[d]].end);
    }
    boxes.push_back(std::move(box));
    std::size_t d = rows.size();
    while (d > 0 && ++at[d - 1] == rows[d - 1].size()) at[--d] = 0;
    if (d == 0) return;
  }
}

std::uint64_t elements(TensorBox const& box) {
  std::uint64_t count = 1;
  for (std::size_t d = 0; d < box.begin.size(); ++d)
    count *= static_cast<std::uint64_t>(box.end[d] - box.begin[d]);
  return count;
}

/// Cuts a box from its outermost dimension on into parts of at most `most` elements, or single rows
/// of all dimensions.
void append_parts(TensorBox const& box, std::uint64_t most, std::vector<TensorBox>& parts,
                  std::size_t d = 0) {
  std::uint64_t const size = elements(box);
  if (size <= most || d == box.begin.size()) return parts.push_back(box);
  Index const rows = box.end[d] - box.begin[d];
  std::uint64_t const row = size / static_cast<std::uint64_t>(rows);
  auto const together = static_cast<Index>(std::max<std::uint64_t>(most / row, 1));
  Index const count = (rows + together - 1) / together;
  for (Index i = 0; i < count; ++i) {
    TensorBox part = box;
    part.begin[d] = box.begin[d] + rows * i / count;
    part.end[d] = box.begin[d] + rows * (i + 1) / count;
    append_parts(part, most, parts, d + 1);
  }
}

class DistPlanner {
 public:
  DistPlanner(DcpTarget& target, TargetParts const& parts, DistTensors const& dist)
      : target_(target), parts_(parts), dist_(dist) {
    places_ = megatron::stage_places(parts.request->target.mesh);
    layer_axis_ = parts.model->axes().find("layer");
  }

  void run() {
    std::vector<StoredName> const names = parts_.side->names(nullptr);
    std::vector<std::vector<TargetBox>> boxes;
    for (StoredName const& name : names) boxes.push_back(boxes_of(name));
    for (std::size_t s = 0; s < parts_.model->slots().size(); ++s) {
      auto const slot = SlotId(s);
      for (std::size_t n = 0; n < names.size(); ++n)
        if (slot == SlotId::weight || (!names[n].copy && has_slot(parts_, names[n], slot)))
          add(names[n], boxes[n], slot);
    }
  }

 private:
  void add(StoredName const& name, std::vector<TargetBox> boxes, SlotId slot) {
    for (TargetBox& box : boxes)
      for (Piece& piece : box.pieces) piece.tensor = parts_.model->in_slot(piece.tensor, slot);
    std::string const key = slot == SlotId::weight
                                ? weight_key(name.name)
                                : state_key(parts_.model->slots()[index(slot)], name.name);
    target_.add_tensor(key, stored_dtype(parts_, name, slot), parts_.side->shape(name), boxes,
                       name.copy);
  }

  std::string weight_key(std::string const& name) const {
    return dist_.fsdp ? "model.module." + name : name;
  }
  std::string state_key(std::string const& state, std::string const& name) const {
    return dist_.fsdp ? fmt::format("optimizer.state.{}{}.{}", fsdp_module, name, state)
                      : dcp::state_prefix(state) + name;
  }

  std::vector<TargetBox> boxes_of(StoredName const& name) {
    std::vector<TargetBox> result;
    std::uint64_t const element = std::max<std::uint64_t>(
        static_cast<std::uint64_t>(bits(stored_dtype(parts_, name))) / 8, 1);
    std::uint64_t const most =
        std::max<std::uint64_t>(parts_.request->options.dist.chunk_bytes / element, 1);
    auto const& whole = grid_of(name);
    std::size_t number = 0;
    for (TensorBox const& rank_box : whole) {
      auto const place =
          static_cast<std::uint32_t>(whole.size() == 1 ? next_single_++ % places_.size()
                                                       : number * places_.size() / whole.size());
      ++number;
      std::vector<TensorBox> parts;
      for (TensorBox const& layer_box : layer_by_layer(name, rank_box))
        append_parts(layer_box, most, parts);
      for (TensorBox& part : parts) {
        std::vector<Piece> pieces = parts_.side->box_pieces(name, part.begin, part.end);
        auto const stage = static_cast<std::uint32_t>(stage_of(name, part, pieces));
        result.push_back({std::move(part), std::move(pieces),
                          stage * narrow<std::uint32_t>(places_.size()) + place});
      }
    }
    return result;
  }

  /// Megatron saves every layer of a stack by itself.
  std::vector<TensorBox> layer_by_layer(StoredName const& name, TensorBox const& box) const {
    if (name.front.empty() || !is_layer(name.front.front().axis)) return {box};
    std::vector<TensorBox> result;
    for (Index layer = box.begin.front(); layer < box.end.front(); ++layer) {
      result.push_back(box);
      result.back().begin.front() = layer;
      result.back().end.front() = layer + 1;
    }
    return result;
  }

  bool is_layer(AxisId axis) const {
    return layer_axis_ >= 0 && axis == static_cast<AxisId>(layer_axis_);
  }

  /// The boxes on the ranks of one pipeline stage, each once. Equal for all names of an entry with
  /// equal leading axes.
  std::vector<TensorBox> const& grid_of(StoredName const& name) {
    std::vector<std::tuple<AxisId, Index, Index>> key{{0, static_cast<Index>(name.entry), 0}};
    for (FrontAxis const& front : name.front)
      for (Run const& run : front.runs) key.emplace_back(front.axis, run.begin, run.end);
    auto const [slot, is_new] = grids_.try_emplace(std::move(key));
    if (!is_new) return slot->second;
    std::set<std::vector<Index>> seen;
    for (MeshPlace const& place : places_) {
      std::vector<TensorBox> boxes;
      append_boxes(parts_.side->rank_rows(name, {place, nullptr}), boxes);
      for (TensorBox& box : boxes) {
        std::vector<Index> corner = box.begin;
        corner.insert(corner.end(), box.end.begin(), box.end.end());
        if (seen.insert(std::move(corner)).second) slot->second.push_back(std::move(box));
      }
    }
    return slot->second;
  }

  /// The pipeline rank of a part: by its layer, else the first for embeddings and the last for the
  /// head.
  int stage_of(StoredName const& name, TensorBox const& part,
               std::vector<Piece> const& pieces) const {
    if (!name.front.empty() && is_layer(name.front.front().axis))
      return stage_of_layer(index_at(name.front.front().runs, part.begin.front()));
    for (Piece const& piece : pieces)
      for (PieceDigit const& digit : piece.digits)
        if (is_layer(digit.axis)) return stage_of_layer(digit.first);
    std::string_view const rest = megatron::behind_root(name.name, dist_.root);
    bool const first = rest.starts_with("embedding.") || (rest.empty() && !dist_.root.empty());
    return first ? 0 : parts_.request->target.pipeline.ranks - 1;
  }

  int stage_of_layer(Index layer) const {
    for (PipelineChunk const& chunk : dist_.chunks)
      if (position_of(chunk.decoder, layer) >= 0) return chunk.rank;
    return parts_.request->target.pipeline.ranks - 1;
  }

  DcpTarget& target_;
  TargetParts const& parts_;
  DistTensors const& dist_;
  std::vector<MeshPlace> places_;  ///< of one pipeline rank
  int layer_axis_ = -1;
  std::size_t next_single_ = 0;
  std::map<std::vector<std::tuple<AxisId, Index, Index>>, std::vector<TensorBox>> grids_;
};

}  // namespace

bool layers_are_alike(Side const& side, Index decoder_layers, std::string const& root) {
  for (StoredName const& name : side.names(nullptr))
    if (megatron::behind_root(name.name, root).starts_with("decoder.layers.") &&
        !name.front.empty() && extent(name.front.front().runs) != decoder_layers)
      return false;
  return true;
}

std::vector<std::pair<std::string, dcp::Path>> fsdp_paths(TargetParts const& parts) {
  std::vector<std::pair<std::string, dcp::Path>> paths;
  auto const& slots = parts.model->slots();
  for (StoredName const& name : parts.side->names(nullptr)) {
    paths.emplace_back("model.module." + name.name,
                       dcp::Path{std::string("model"), "module." + name.name});
    std::string const parameter = std::string(fsdp_module) + name.name;
    for (std::size_t s = 1; s < slots.size(); ++s)
      if (!name.copy && has_slot(parts, name, SlotId(s)))
        paths.emplace_back(
            fmt::format("optimizer.state.{}.{}", parameter, slots[s]),
            dcp::Path{std::string("optimizer"), std::string("state"), parameter, slots[s]});
  }
  return paths;
}

void add_dist_tensors(DcpTarget& target, TargetParts const& parts, DistTensors const& dist) {
  DistPlanner(target, parts, dist).run();
}

}  // namespace reshard
