#include "pipeline/verify/compare/compare_rows.hpp"

#include <algorithm>
#include <numeric>

#include "core/base/files/file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/shown_name.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

ComparedPlace stored_at(Catalog const& catalog, std::uint32_t blob, std::uint64_t offset_bytes) {
  Blob const& found = catalog.blobs[blob];
  if (found.file < catalog.real_files())
    return {catalog.files[found.file], found.name, offset_bytes};
  SourceView const& view = catalog.views[found.file - catalog.real_files()];
  if (view.gathered) return {catalog.files[view.stored.file], found.name, std::nullopt};
  auto const element = offset_bytes * 8 / static_cast<std::uint64_t>(bits(view.dtype));
  return {
      catalog.files[view.stored.file], found.name,
      view.stored.offset_bytes + element * static_cast<std::uint64_t>(bits(view.stored.dtype)) / 8};
}

}  // namespace

Index extent_of(DomainAxis const& axis) {
  return std::accumulate(axis.runs.begin(), axis.runs.end(), Index{0},
                         [](Index sum, Run const& run) { return sum + run.end - run.begin; });
}

std::string config_text(ConfigDifference const& one) {
  auto const shown = [](std::string const& value) {
    return value.empty() ? std::string("missing") : value;
  };
  return fmt::format("{}: {} in a, {} in b", one.key, shown(one.a), shown(one.b));
}

double mean_difference(TensorStats const& stats) {
  return stats.finite == 0 ? 0 : stats.absolute_sum / static_cast<double>(stats.finite);
}

bool is_measured(TensorStats const& stats) { return stats.non_finite_differing == 0; }

CompareRows::CompareRows(CompareFindings const& findings)
    : findings_(findings),
      request_(*findings.request),
      model_(*findings.sides->a.catalogue.model),
      a_(findings.sides->a.catalogue.source) {
  std::vector<ComparedTensor const*> tensors(model_.tensors().size());
  for (ComparedTensor const& tensor : findings.matched->tensors) tensors[tensor.tensor] = &tensor;
  std::vector<TensorPart> const parts = parts_of(model_);
  for (std::size_t p = 0; p < parts.size(); ++p)
    add_part(parts[p], *tensors[parts[p].tensor], findings.stats[p]);
  if (!differing_.empty()) places_.emplace(model_, a_);
  if (!values()) return;
  auto const rank_of = [](ComparedRow const& row) {
    TensorStats const& stats = *row.stats;
    return std::pair(stats.non_finite_differing + stats.non_finite_in_replicas > 0,
                     std::max(stats.relative.value, stats.relative_in_replicas));
  };
  std::stable_sort(
      differing_.begin(), differing_.end(),
      [&](ComparedRow const& x, ComparedRow const& y) { return rank_of(x) > rank_of(y); });
}

void CompareRows::add_part(TensorPart const& part, ComparedTensor const& tensor,
                           TensorStats const& stats) {
  ComparedRow row{part.tensor, part.layer, tensor.dtype_a, tensor.dtype_b, 1, &stats};
  std::vector<DomainAxis> const domain = model_.domain(model_.tensors()[part.tensor]);
  for (std::size_t d = part.layer ? 1 : 0; d < domain.size(); ++d)
    row.elements *= static_cast<std::uint64_t>(extent_of(domain[d]));
  bytes_ += row.elements * static_cast<std::uint64_t>(bits(row.dtype_a)) / 8;
  all_.push_back(row);
  if (!stats.same()) differing_.push_back(row);
}

std::string CompareRows::name_of(ComparedRow const& row) const {
  std::string const& tensor = model_.tensors()[row.tensor].name;
  if (!row.layer) return tensor;
  AxisId const axis = *model_.layer_axis(TensorId(row.tensor));
  return part_prefix(model_.axes()[axis].name, *row.layer) + tensor;
}

std::vector<ConfigDifference> const& CompareRows::configs() const {
  return findings_.sides->configs.differences;
}

bool CompareRows::same_weights() const {
  return differing_.empty() && findings_.matched->differences.empty();
}

ComparedElement CompareRows::first_of(ComparedRow const& row) const {
  TensorStats const& stats = *row.stats;
  DType const dtype = findings_.matched->b.blobs[stats.first.blob].dtype;
  auto const bytes = static_cast<std::size_t>(bits(dtype) / 8);
  ComparedElement result;
  result.indices = places_->indices_at(row.tensor, stats.first.place);
  result.place = places_->text_of(row.tensor, result.indices);
  result.a_value = value_text(dtype, std::span(stats.first.a).first(bytes));
  result.b_value = value_text(dtype, std::span(stats.first.b).first(bytes));
  if (auto const at = places_->find(row.tensor, result.indices))
    result.a = stored_at(a_, at->blob, at->offset_bytes);
  result.b = stored_at(findings_.matched->b, stats.first.blob, stats.first.offset_bytes);
  return result;
}

std::vector<Index> CompareRows::indices_at(ComparedRow const& row, std::uint64_t place) const {
  return places_->indices_at(row.tensor, place);
}

std::string CompareRows::summary() const {
  std::uint64_t headers = 0;
  for (HeaderDifference const& one : findings_.matched->differences) headers += one.parts;
  std::uint64_t const all = all_.size() + headers;
  std::string const tensors = counted(all, "tensor");
  if (is_same(findings_)) return fmt::format("same: {}, {}", tensors, human_bytes(bytes_));
  if (same_weights()) {
    std::vector<std::string> keys;
    for (ConfigDifference const& one : configs()) keys.push_back(config_text(one));
    return fmt::format("same weights, other config: {} ({}, {})", listed(keys, 4), tensors,
                       human_bytes(bytes_));
  }
  std::string text = fmt::format("different: {} of {}", differing_.size() + headers, tensors);
  std::string parts;
  auto const add = [&parts](std::uint64_t count, std::string_view what) {
    if (count > 0) parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", count, what);
  };
  add(differing_.size(), "by their elements");
  for (auto const& [fault, what] :
       {std::pair(HeaderFault::missing, "missing in b"),
        std::pair(HeaderFault::extra, "extra in b"), std::pair(HeaderFault::shape, "by shape"),
        std::pair(HeaderFault::dtype, "by dtype"), std::pair(HeaderFault::incomplete, "incomplete"),
        std::pair(HeaderFault::not_comparable, "not comparable")})
    add(count_of(fault), what);
  return fmt::format("{} ({}), {} compared", text, parts, human_bytes(bytes_));
}

/// Layer by layer, as elements are counted.
std::uint64_t CompareRows::count_of(HeaderFault fault) const {
  std::uint64_t count = 0;
  for (HeaderDifference const& one : findings_.matched->differences)
    if (one.fault == fault) count += one.parts;
  return count;
}

}  // namespace reshard
