#include "core/plan/plan.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "core/base/integers.hpp"
#include "core/base/workers.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/part_plan.hpp"
#include "core/plan/slice_plan.hpp"
#include "core/plan/tensor_plan.hpp"

namespace reshard {
namespace {

void add_opaque(Plan& plan, std::span<OpaqueCopy const> opaque, PlanLimits const& limits) {
  bool const digests = limits.digests;
  for (OpaqueCopy const& copy : opaque) {
    if (digests) plan.tensor_bytes.push_back(copy.bytes);
    if (copy.bytes == 0) continue;
    Region const region{copy.src_file,
                        copy.dst_file,
                        copy.src_offset_bytes,
                        copy.dst_offset_bytes,
                        copy.bytes,
                        0,
                        0};
    Cell cell;
    cell.source_bytes = cell.target_bytes = copy.bytes;
    cell.staging_bytes = staging_bound(std::span(&region, 1), {}, limits.alignment);
    std::vector<DigestRegion> all;
    if (digests)
      all.push_back({copy.src_file, DigestId{narrow<std::uint32_t>(plan.tensor_bytes.size() - 1)},
                     copy.src_offset_bytes, 0, copy.bytes, 0, 0});
    plan.add(cell, std::span(&region, 1), all);
    plan.source_bytes += copy.bytes;
    plan.target_bytes += copy.bytes;
  }
}

/// Rounded masters have half the bytes of the F32 values.
void add_checks(Plan& plan, Model const& model, Catalog const& source) {
  plan.checks =
      state_checks(model, source, DigestId{narrow<std::uint32_t>(plan.tensor_bytes.size())});
  for (StateCheck const& check : plan.checks)
    if (check.rule == StateRule::rounds_to_weight && check.weight_dtype != DType::f32)
      plan.tensor_bytes.push_back(plan.tensor_bytes[index(check.state)] / 2);
}

/// Target order: by the first target byte of each cell.
void sort_cells(Plan& plan) {
  auto const first_target = [&plan](Cell const& cell) {
    std::tuple<std::uint32_t, std::uint64_t> first{0xffffffffU, 0};
    for (Region const& region : plan.regions_of(cell))
      first = std::min(first, {region.to, region.dst_offset_bytes});
    return first;
  };
  using Place = std::tuple<std::uint32_t, std::uint64_t>;
  std::vector<std::pair<Place, std::uint32_t>> order;
  order.reserve(plan.cells.size());
  for (std::uint32_t i = 0; i < plan.cells.size(); ++i)
    order.emplace_back(first_target(plan.cells[i]), i);
  std::ranges::sort(order);
  std::vector<Cell> sorted;
  sorted.reserve(plan.cells.size());
  for (auto const& [place, i] : order) sorted.push_back(plan.cells[i]);
  plan.cells = std::move(sorted);
}

}  // namespace

namespace {

/// Adds what was planned for some tensors apart, and lets go of it.
void append(Plan& plan, Plan part) {
  auto const shapes = narrow<std::uint32_t>(plan.shapes.size());
  auto const places = narrow<std::uint32_t>(plan.places.size());
  for (Cell& cell : part.cells) {
    cell.shape += shapes;
    cell.first_source += places;
    cell.first_target += places;
  }
  append_shapes(plan, {part.shapes, part.shape_regions, part.shape_digests, part.dims});
  plan.places.insert(plan.places.end(), part.places.begin(), part.places.end());
  plan.cells.insert(plan.cells.end(), part.cells.begin(), part.cells.end());
  plan.source_bytes += part.source_bytes;
  plan.target_bytes += part.target_bytes;
  plan.replicas_dropped += part.replicas_dropped;
  plan.logical_tensors += part.logical_tensors;
  plan.joined_regions += part.joined_regions;
}

/// Larger cells for a larger job: each takes memory in the plan.
std::uint64_t cell_bytes_of(Model const& model, std::span<TensorId const> tensors,
                            Catalog const& source, PlanLimits const& limits) {
  std::uint64_t bytes = 0;
  for (TensorId const tensor : tensors) {
    auto const blobs = source.tensors[index(tensor)].blobs();
    if (blobs.empty()) continue;
    std::uint64_t const bits_each = narrow<std::uint64_t>(bits(source.blobs[blobs.front()].dtype));
    bytes += static_cast<std::uint64_t>(model.volume(model.tensor(tensor))) * bits_each / 8;
  }
  std::uint64_t const most = std::max(limits.cell_bytes, limits.most_cell_bytes);
  return std::clamp(bytes / limits.usual_cells, limits.cell_bytes, most);
}

/// The most places that a plan can need, so that they are never moved into larger memory.
std::size_t most_places(std::span<TensorId const> tensors, Catalog const& source,
                        Catalog const& target) {
  std::size_t places = 0;
  for (TensorId const tensor : tensors)
    places += source.tensors[index(tensor)].size() + target.tensors[index(tensor)].size();
  return places;
}

/// What was planned for each tensor, added in order and let go of as soon as that can be.
class InOrder {
 public:
  InOrder(Plan& plan, std::size_t count) : plan_(plan), parts_(count) {}

  void add(std::size_t number, Plan part) {
    std::lock_guard const lock(mutex_);
    parts_[number] = std::move(part);
    for (; next_ < parts_.size() && parts_[next_]; ++next_)
      append(plan_, *std::exchange(parts_[next_], {}));
  }

 private:
  Plan& plan_;
  std::mutex mutex_;
  std::vector<std::optional<Plan>> parts_;
  std::size_t next_ = 0;
};

Plan make_covering_plan(Model const& model, Catalog const& source, Catalog const& target,
                        PlanLimits const& limits, std::span<OpaqueCopy const> opaque,
                        TargetCover cover) {
  Plan plan;
  plan.alignment = limits.alignment;
  if (limits.digests) plan.tensor_bytes.resize(model.tensors().size());
  std::vector<TensorId> tensors;
  for (std::size_t t = 0; t < model.tensors().size(); ++t)
    if (model.exists(TensorId(t)) && model.volume(model.tensors()[t]) != 0)
      tensors.push_back(TensorId(t));
  PlanLimits sized = limits;
  sized.cell_bytes = cell_bytes_of(model, tensors, source, limits);
  plan.places.reserve(most_places(tensors, source, target));
  InOrder parts(plan, tensors.size());
  Workers workers(
      std::clamp<std::size_t>(limits.threads, 1, std::max<std::size_t>(tensors.size(), 1)));
  workers.run(tensors.size(), [&](std::size_t i, std::size_t) {
    Plan part;
    plan_tensor(part, plan.tensor_bytes, model, tensors[i], source, target, sized, cover);
    parts.add(i, std::move(part));
  });
  add_opaque(plan, opaque, limits);
  if (limits.digests) add_checks(plan, model, source);
  sort_cells(plan);
  return plan;
}

}  // namespace

Plan make_plan(Model const& model, Catalog const& source, Catalog const& target,
               PlanLimits const& limits, std::span<OpaqueCopy const> opaque) {
  return make_covering_plan(model, source, target, limits, opaque, TargetCover::whole);
}

Plan make_part_plan(Model const& model, Catalog const& source, Catalog const& target,
                    PlanLimits const& limits) {
  PlanLimits without = limits;
  without.digests = false;
  return make_covering_plan(model, source, target, without, {}, TargetCover::part);
}

}  // namespace reshard
