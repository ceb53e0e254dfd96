#include "core/plan/plan.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/base/tables/integers.hpp"
#include "core/base/threads/workers.hpp"
#include "core/plan/cells/part_plan.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/equal/alike_tensors.hpp"
#include "core/plan/equal/slice_plan.hpp"
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
    CellShape sizes;
    sizes.source_bytes = sizes.target_bytes = copy.bytes;
    sizes.staging_bytes = staging_bound(std::span(&region, 1), {}, limits.alignment);
    std::vector<DigestRegion> all;
    if (digests)
      all.push_back({copy.src_file, DigestId{narrow<std::uint32_t>(plan.tensor_bytes.size() - 1)},
                     copy.src_offset_bytes, 0, copy.bytes, 0, 0});
    plan.add(sizes, std::span(&region, 1), all);
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
  FilePlaces firsts;
  std::vector<std::uint32_t> order;
  firsts.reserve(plan.cells.size());
  order.reserve(plan.cells.size());
  for (Cell const& cell : plan.cells) {
    std::pair<std::uint32_t, std::uint64_t> first{0xffffffffU, 0};
    CellShape const& shape = plan.cells.shape(cell.shape);
    for (std::uint32_t r = 0; r < shape.region_count; ++r) {
      Region const& region = plan.shape_regions[shape.first_region + r];
      FilePlace const to = plan.places[cell.first_target + region.to];
      first = std::min(first, {to.file, to.offset_bytes + region.dst_offset_bytes});
    }
    firsts.add({first.second, first.first});
    order.push_back(narrow<std::uint32_t>(order.size()));
  }
  auto const place = [&firsts](std::uint32_t cell) {
    FilePlace const first = firsts[cell];
    return std::tuple(first.file, first.offset_bytes, cell);
  };
  if (std::ranges::is_sorted(order, {}, place)) return;
  std::ranges::sort(order, {}, place);
  // In place: a large job has several MiB of cells. Each step moves one to where it belongs.
  for (std::uint32_t begin = 0; begin < order.size(); ++begin) {
    CellTable::Record const first = plan.cells.record(begin);
    std::uint32_t at = begin;
    for (;;) {
      std::uint32_t const from = std::exchange(order[at], at);
      if (from == begin) break;
      plan.cells.set(at, plan.cells.record(from));
      at = from;
    }
    plan.cells.set(at, first);
  }
}

}  // namespace

namespace {

/// Appends the separate plan of some tensors, and frees it.
void append(Plan& plan, Plan part) {
  auto const shapes = narrow<std::uint32_t>(plan.cells.shapes().size());
  auto const places = narrow<std::uint32_t>(plan.places.size());
  append_shapes(plan, {part.cells.shapes(), part.shape_regions, part.shape_digests, part.dims});
  plan.places.add(part.places);
  for (std::size_t c = 0; c < part.cells.size(); ++c) {
    CellTable::Record cell = part.cells.record(c);
    cell.shape += shapes;
    cell.first_place += places;
    plan.cells.add(cell);
  }
  plan.source_bytes += part.source_bytes;
  plan.target_bytes += part.target_bytes;
  plan.replicas_dropped += part.replicas_dropped;
  plan.logical_tensors += part.logical_tensors;
  plan.joined_regions += part.joined_regions;
}

/// A tensor that is planned, and the first one that is like it: itself if there is none before.
struct PlannedTensor {
  TensorId tensor{};
  TensorId like{};
  bool is_new() const { return like == tensor; }
};

/// The tensors that exist and have elements.
std::vector<PlannedTensor> planned_tensors(Model const& model, Catalog const& source,
                                           Catalog const& target) {
  AlikeTensors alike(model, {&source, &target});
  std::vector<bool> empty(model.tensors().size(), false);
  std::vector<PlannedTensor> tensors;
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    if (!model.exists(TensorId(t))) continue;
    TensorId const like = alike.like(TensorId(t)).value_or(TensorId(t));
    empty[t] = like == TensorId(t) ? model.volume(model.tensors()[t]) == 0 : empty[index(like)];
    if (!empty[t]) tensors.push_back({TensorId(t), like});
  }
  return tensors;
}

/// Larger cells for a larger job: each takes memory in the plan.
std::uint64_t cell_bytes_of(Model const& model, std::span<PlannedTensor const> tensors,
                            Catalog const& source, PlanLimits const& limits) {
  std::vector<std::uint64_t> bytes_of(model.tensors().size());
  std::uint64_t bytes = 0;
  for (auto const& [tensor, like] : tensors) {
    auto const blobs = source.tensors[index(tensor)].blobs();
    if (tensor == like && !blobs.empty())
      bytes_of[index(tensor)] = static_cast<std::uint64_t>(model.volume(model.tensor(tensor))) *
                                narrow<std::uint64_t>(bits(source.blobs.dtype(blobs.front()))) / 8;
    bytes += bytes_of[index(like)];
  }
  std::uint64_t const most = std::max(limits.cell_bytes, limits.most_cell_bytes);
  return std::clamp(bytes / limits.usual_cells, limits.cell_bytes, most);
}

/// The most places that a plan can need, so that they are never moved into larger memory.
std::size_t most_places(std::span<PlannedTensor const> tensors, Catalog const& source,
                        Catalog const& target) {
  std::size_t places = 0;
  for (auto const& [tensor, like] : tensors)
    places += source.tensors[index(tensor)].size() + target.tensors[index(tensor)].size();
  return places;
}

/// The inputs of the plans of all tensors.
struct PlanTerms {
  Model const& model;
  Catalog const& source;
  Catalog const& target;
  PlanLimits limits;
  TargetCover cover;
};

/// Plans tensors on several threads, and appends their plans in order, as soon as possible.
class TensorPlans {
 public:
  TensorPlans(Plan& plan, PlanTerms const& terms, std::span<PlannedTensor const> tensors)
      : plan_(plan), terms_(terms), tensors_(tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].is_new()) new_.push_back(narrow<std::uint32_t>(i));
    parts_.resize(new_.size());
  }

  void run() {
    Workers workers(
        std::clamp<std::size_t>(terms_.limits.threads, 1, std::max<std::size_t>(new_.size(), 1)));
    workers.run(new_.size(), [&](std::size_t n, std::size_t) {
      Part part = planned(tensors_[new_[n]].tensor);
      std::lock_guard const lock(mutex_);
      parts_[n] = std::move(part);
      for (; next_ < parts_.size() && parts_[next_]; ++next_) add_with_alike();
    });
  }

 private:
  struct Part {
    Plan plan;
    PlanScope scope = PlanScope::these_places;
  };
  /// The part of the plan of a tensor that others are like.
  struct Known {
    CellRange cells;
    std::uint32_t first_place = 0;
    std::uint64_t source_bytes = 0;
    std::uint64_t target_bytes = 0;
    std::uint64_t joined_regions = 0;
  };

  Part planned(TensorId tensor) {
    Part part;
    part.scope = plan_tensor(part.plan, plan_.tensor_bytes, terms_.model, tensor, terms_.source,
                             terms_.target, terms_.limits, terms_.cover);
    return part;
  }

  /// The next part, and the tensors up to the next new one, which are like one before.
  void add_with_alike() {
    std::size_t at = new_[next_];
    add_new(tensors_[at].tensor, *std::exchange(parts_[next_], {}));
    for (++at; at < tensors_.size() && !tensors_[at].is_new(); ++at) {
      auto const known = known_.find(tensors_[at].like);
      if (known == known_.end())
        append(plan_, std::move(planned(tensors_[at].tensor).plan));
      else
        add_like(tensors_[at], known->second);
    }
  }

  void add_new(TensorId tensor, Part part) {
    if (part.scope == PlanScope::any_places)
      known_.emplace(tensor,
                     Known{{plan_.cells.size(), plan_.cells.size() + part.plan.cells.size()},
                           narrow<std::uint32_t>(plan_.places.size()),
                           part.plan.source_bytes,
                           part.plan.target_bytes,
                           part.plan.joined_regions});
    append(plan_, std::move(part.plan));
  }

  /// The cells of a tensor of one piece on each side, which are at places of their own.
  void add_like(PlannedTensor const& planned, Known const& known) {
    auto const shift = narrow<std::uint32_t>(plan_.places.size()) - known.first_place;
    for (std::size_t c = known.cells.begin; c < known.cells.end; ++c) {
      CellTable::Record cell = plan_.cells.record(c);
      cell.first_place += shift;
      cell.digest = digest_of(planned.tensor);
      plan_.cells.add(cell);
    }
    if (known.cells.size() > 0)
      for (Catalog const* const side : {&terms_.source, &terms_.target}) {
        TensorPieces const& pieces = side->tensors[index(planned.tensor)];
        FilePlace place = side->blobs.place(pieces.blob(0));
        FilePlace const before = plan_.places[plan_.places.size() - shift];
        FilePlace const of_before = side->blobs.place(side->tensors[index(planned.like)].blob(0));
        place.offset_bytes += before.offset_bytes - of_before.offset_bytes;
        plan_.places.add(place);
      }
    if (!plan_.tensor_bytes.empty())
      plan_.tensor_bytes[index(planned.tensor)] = plan_.tensor_bytes[index(planned.like)];
    plan_.source_bytes += known.source_bytes;
    plan_.target_bytes += known.target_bytes;
    plan_.joined_regions += known.joined_regions;
    ++plan_.logical_tensors;
  }

  Plan& plan_;
  PlanTerms const& terms_;
  std::span<PlannedTensor const> tensors_;
  std::vector<std::uint32_t> new_;  ///< places in tensors_
  std::mutex mutex_;
  std::vector<std::optional<Part>> parts_;  ///< of the new ones
  std::size_t next_ = 0;
  std::unordered_map<TensorId, Known> known_;
};

Plan make_covering_plan(PlanTerms terms, std::span<OpaqueCopy const> opaque) {
  Plan plan;
  plan.alignment = terms.limits.alignment;
  if (terms.limits.digests) plan.tensor_bytes.resize(terms.model.tensors().size());
  auto const tensors = planned_tensors(terms.model, terms.source, terms.target);
  PlanLimits const limits = terms.limits;
  terms.limits.cell_bytes = cell_bytes_of(terms.model, tensors, terms.source, limits);
  plan.places.reserve(most_places(tensors, terms.source, terms.target));
  TensorPlans(plan, terms, tensors).run();
  add_opaque(plan, opaque, limits);
  if (limits.digests) add_checks(plan, terms.model, terms.source);
  sort_cells(plan);
  return plan;
}

}  // namespace

Plan make_plan(Model const& model, Catalog const& source, Catalog const& target,
               PlanLimits const& limits, std::span<OpaqueCopy const> opaque) {
  return make_covering_plan({model, source, target, limits, TargetCover::whole}, opaque);
}

Plan make_part_plan(Model const& model, Catalog const& source, Catalog const& target,
                    PlanLimits const& limits) {
  PlanLimits without = limits;
  without.digests = false;
  return make_covering_plan({model, source, target, without, TargetCover::part}, {});
}

}  // namespace reshard
