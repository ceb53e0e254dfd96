#include "pipeline/verify/compare_report.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/base/counted.hpp"
#include "core/base/file.hpp"
#include "core/base/shown_name.hpp"
#include "core/base/text.hpp"
#include "pipeline/verify/difference_histogram.hpp"

namespace reshard {
namespace {

/// An element on one side, as its file has it.
struct Stored {
  std::string file;
  std::string name;
  std::uint64_t offset_bytes = 0;
};

Stored stored_at(Catalog const& catalog, std::uint32_t blob, std::uint64_t offset_bytes) {
  Blob const& found = catalog.blobs[blob];
  if (found.file < catalog.real_files())
    return {catalog.files[found.file], found.name, offset_bytes};
  SourceView const& view = catalog.views[found.file - catalog.real_files()];
  auto const element = offset_bytes * 8 / static_cast<std::uint64_t>(bits(view.dtype));
  return {
      catalog.files[view.stored.file], found.name,
      view.stored.offset_bytes + element * static_cast<std::uint64_t>(bits(view.stored.dtype)) / 8};
}

/// A differing element with everything that can be said about it.
struct Shown {
  std::vector<Index> indices;
  std::string place;
  std::string a_value;
  std::string b_value;
  Stored a;
  Stored b;
};

Index extent_of(DomainAxis const& axis) {
  return std::accumulate(axis.runs.begin(), axis.runs.end(), Index{0},
                         [](Index sum, Run const& run) { return sum + run.end - run.begin; });
}

/// A tensor, or a layer of one, and what was found in it.
struct Row {
  std::uint32_t tensor = 0;
  std::optional<Index> layer;
  DType dtype_a = DType::u8;
  DType dtype_b = DType::u8;
  std::uint64_t elements = 0;
  TensorStats const* stats = nullptr;
};

class Reporter {
 public:
  explicit Reporter(CompareFindings const& findings)
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
    auto const rank_of = [](Row const& row) {
      return std::pair(row.stats->non_finite_differing > 0, row.stats->relative.value);
    };
    std::stable_sort(differing_.begin(), differing_.end(),
                     [&](Row const& x, Row const& y) { return rank_of(x) > rank_of(y); });
  }

  std::string text() {
    for (std::string const& note : findings_.sides->notes) text_ += "note: " + note + "\n";
    for (auto const& [side, letter] :
         {std::pair(&findings_.sides->a, 'a'), std::pair(&findings_.sides->b, 'b')})
      if (std::string const left = not_compared(*side, findings_.sides->by_names); !left.empty())
        text_ += fmt::format("not compared in {} ({}): {}\n", letter, side->path.string(), left);
    if (std::string const& why = findings_.sides->configs.not_compared; !why.empty())
      text_ += fmt::format("not compared: the configs: {}\n", why);
    add_states();
    for (ConfigDifference const& one : configs())
      text_ += fmt::format("{:<15} {}\n", "other config", config_text(one));
    for (HeaderDifference const& difference : findings_.matched->differences)
      add_row([&] { add(difference); });
    if (values() && !differing_.empty())
      text_ += fmt::format("{:>11} {:>11} {:>11}  {:<20} {:<11} tensor\n", "max |a-b|", "max rel",
                           "mean |a-b|", "differing", "dtype");
    for (Row const& row : differing_) add_row([&] { values() ? add_values(row) : add_bytes(row); });
    if (request_.histogram) text_ += histogram_text(findings_.stats);
    if (rows_ > request_.row_limit)
      text_ +=
          fmt::format("… {} more rows: --limit {} shows all\n", rows_ - request_.row_limit, rows_);
    if (!values() && one_sided_states() > 0)
      text_ += fmt::format(
          "note: {} of optimizer state that one side does not have: --weights-only leaves it out\n",
          counted(one_sided_states(), "tensor"));
    return text_ + summary() + "\n";
  }

  Json json() {
    Json result;
    result.set("a", request_.a.string())
        .set("b", request_.b.string())
        .set("comparison", values() ? "values" : "bytes");
    result.set("tensors_by", findings_.sides->by_names ? "stored names" : "map")
        .set("same", is_same(findings_))
        .set("summary", summary());
    result.set("tensors_compared", rows_of_all_.size())
        .set("tensors_differing", differing_.size())
        .set("bytes", bytes_);
    Json notes = Json::array();
    for (std::string const& note : findings_.sides->notes) notes.push(note);
    Json left;
    left.set("a", not_compared(findings_.sides->a, findings_.sides->by_names))
        .set("b", not_compared(findings_.sides->b, findings_.sides->by_names));
    left.set("optimizer_tensors_only_in_a", findings_.matched->states_only_a)
        .set("optimizer_tensors_only_in_b", findings_.matched->states_only_b);
    Json headers = Json::array();
    for (HeaderDifference const& difference : findings_.matched->differences)
      headers.push(Json()
                       .set("kind", name(difference.fault))
                       .set("tensor", difference.tensor)
                       .set("a", difference.a)
                       .set("b", difference.b));
    Json tensors = Json::array();
    if (values())
      for (Row const& row : rows_of_all_) tensors.push(row_json(row));
    else
      for (Row const& row : differing_) tensors.push(row_json(row));
    Json other = Json::array();
    for (ConfigDifference const& one : configs())
      other.push(Json().set("key", one.key).set("a", one.a).set("b", one.b));
    result.set("config_differences", std::move(other))
        .set("configs_not_compared", findings_.sides->configs.not_compared);
    if (values()) result.set("histogram", histogram_json(findings_.stats));
    result.set("notes", std::move(notes))
        .set("not_compared", std::move(left))
        .set("header_differences", std::move(headers));
    return result.set("tensors", std::move(tensors));
  }

 private:
  bool values() const { return request_.comparison == Comparison::values; }

  void add_part(TensorPart const& part, ComparedTensor const& tensor, TensorStats const& stats) {
    Row row{part.tensor, part.layer, tensor.dtype_a, tensor.dtype_b, 1, &stats};
    std::vector<DomainAxis> const domain = model_.domain(model_.tensors()[part.tensor]);
    for (std::size_t d = part.layer ? 1 : 0; d < domain.size(); ++d)
      row.elements *= static_cast<std::uint64_t>(extent_of(domain[d]));
    bytes_ += row.elements * static_cast<std::uint64_t>(bits(row.dtype_a)) / 8;
    rows_of_all_.push_back(row);
    if (!stats.same()) differing_.push_back(row);
  }

  std::string const& name_of(Row const& row) const { return model_.tensors()[row.tensor].name; }

  /// "attn.q, layer 3"
  std::string title_of(Row const& row) const {
    if (!row.layer) return shown_name(name_of(row));
    return fmt::format("{}, {} {}", shown_name(name_of(row)),
                       model_.axes()[*model_.layer_axis(TensorId(row.tensor))].name, *row.layer);
  }

  std::vector<ConfigDifference> const& configs() const {
    return findings_.sides->configs.differences;
  }

  static std::string config_text(ConfigDifference const& one) {
    auto const shown = [](std::string const& value) {
      return value.empty() ? std::string("missing") : value;
    };
    return fmt::format("{}: {} in a, {} in b", one.key, shown(one.a), shown(one.b));
  }

  bool same_weights() const { return differing_.empty() && findings_.matched->differences.empty(); }

  static std::string dtype_text(Row const& row) {
    return row.dtype_a == row.dtype_b
               ? std::string(name(row.dtype_a))
               : fmt::format("{} / {}", name(row.dtype_a), name(row.dtype_b));
  }

  template <class Add>
  void add_row(Add add) {
    if (rows_++ < request_.row_limit) add();
  }

  void add_states() {
    for (auto const& [count, letter] : {std::pair(findings_.matched->states_only_a, 'a'),
                                        std::pair(findings_.matched->states_only_b, 'b')})
      if (count > 0)
        text_ += fmt::format("not compared: {} of optimizer state that only {} has\n",
                             counted(count, "tensor"), letter);
  }

  void add(HeaderDifference const& difference) {
    std::string const& tensor = difference.tensor;
    switch (difference.fault) {
      case HeaderFault::missing:
        text_ += fmt::format("{:<15} {}: a has it ({}), b does not\n", "missing in b", tensor,
                             difference.a);
        return;
      case HeaderFault::extra:
        text_ += fmt::format("{:<15} {}: b has it ({}), a does not\n", "extra in b", tensor,
                             difference.b);
        return;
      case HeaderFault::incomplete:
        for (auto const& [fault, letter] :
             {std::pair(difference.a, 'a'), std::pair(difference.b, 'b')})
          if (!fault.empty())
            text_ += fmt::format("{:<15} {}: {}: {}\n", "incomplete", tensor, letter, fault);
        return;
      case HeaderFault::shape:
      case HeaderFault::dtype:
      case HeaderFault::not_comparable:
        text_ += fmt::format("{:<15} {}: {} in a, {} in b\n", name(difference.fault), tensor,
                             difference.a, difference.b);
    }
  }

  std::string count_text(Row const& row) const {
    TensorStats const& stats = *row.stats;
    std::string text = fmt::format("{} of {}", stats.differing, row.elements);
    if (stats.differing_in_replicas > 0)
      text += fmt::format(" and {} in replicas of b", stats.differing_in_replicas);
    return text;
  }

  void add_bytes(Row const& row) {
    Shown const first = shown(row);
    text_ += fmt::format("{:<15} {} {} {}: {}\n", "differs", title_of(row), dtype_text(row),
                         shape_text(model_, row.tensor, row.layer ? 1 : 0), count_text(row));
    text_ +=
        fmt::format("  first at {}: {} in a, {} in b\n", first.place, first.a_value, first.b_value);
    text_ += fmt::format("  a: {}: '{}', byte {} of the file\n", first.a.file,
                         shown_name(first.a.name), first.a.offset_bytes);
    text_ += fmt::format("  b: {}: '{}', byte {} of the file\n", first.b.file,
                         shown_name(first.b.name), first.b.offset_bytes);
  }

  /// Over the elements that are finite on both sides.
  static double mean_of(TensorStats const& stats) {
    return stats.finite == 0 ? 0 : stats.absolute_sum / static_cast<double>(stats.finite);
  }

  /// Whether these numbers say how far all elements are apart: a NaN or an infinity on one side is
  /// at no distance.
  static bool is_measured(TensorStats const& stats) { return stats.non_finite_differing == 0; }

  void add_values(Row const& row) {
    TensorStats const& stats = *row.stats;
    for (double const value : {stats.absolute.value, stats.relative.value, mean_of(stats)})
      text_ += is_measured(stats) ? fmt::format("{:>11.4g} ", value) : fmt::format("{:>11} ", "-");
    text_ += fmt::format(" {:<20} {:<11} {}", count_text(row), dtype_text(row), title_of(row));
    if (!has_values(row.dtype_b))
      text_ += fmt::format(" ({} is compared bit by bit)", name(row.dtype_b));
    if (stats.nan_a + stats.nan_b + stats.infinite_a + stats.infinite_b > 0)
      text_ +=
          fmt::format(" (NaN {} / {}, infinite {} / {}, {} of them not alike)", stats.nan_a,
                      stats.nan_b, stats.infinite_a, stats.infinite_b, stats.non_finite_differing);
    if (!is_measured(stats) && stats.absolute.value > 0)
      text_ += fmt::format(" (finite: max |a-b| {:.4g}, max rel {:.4g}, mean {:.4g})",
                           stats.absolute.value, stats.relative.value, mean_of(stats));
    text_ += "\n";
  }

  DType compared_dtype(TensorStats const& stats) const {
    return findings_.matched->b.blobs[stats.first.blob].dtype;
  }

  Shown shown(Row const& row) const {
    TensorStats const& stats = *row.stats;
    DType const dtype = compared_dtype(stats);
    auto const bytes = static_cast<std::size_t>(bits(dtype) / 8);
    Shown result;
    result.indices = places_->indices_at(row.tensor, stats.first.place);
    result.place = places_->text_of(row.tensor, result.indices);
    result.a_value = value_text(dtype, std::span(stats.first.a).first(bytes));
    result.b_value = value_text(dtype, std::span(stats.first.b).first(bytes));
    if (auto const at = places_->find(row.tensor, result.indices))
      result.a = stored_at(a_, at->blob, at->offset_bytes);
    result.b = stored_at(findings_.matched->b, stats.first.blob, stats.first.offset_bytes);
    return result;
  }

  static Json stored_json(Stored const& stored) {
    return std::move(Json()
                         .set("file", stored.file)
                         .set("name", stored.name)
                         .set("offset", stored.offset_bytes));
  }

  Json place_json(Row const& row, std::uint64_t place) const {
    if (place == DifferingElement::nowhere) return {};
    Json result = Json::array();
    for (Index const index : places_->indices_at(row.tensor, place)) result.push(index);
    return result;
  }

  Json row_json(Row const& row) const {
    TensorStats const& stats = *row.stats;
    Json axes = Json::array();
    Json shape = Json::array();
    for (DomainAxis const& axis : model_.domain(model_.tensors()[row.tensor])) {
      axes.push(model_.axes()[axis.axis].name);
      shape.push(extent_of(axis));
    }
    Json result;
    result.set("name", name_of(row))
        .set("dtype_a", name(row.dtype_a))
        .set("dtype_b", name(row.dtype_b));
    if (row.layer) result.set("layer", *row.layer);
    result.set("axes", std::move(axes))
        .set("shape", std::move(shape))
        .set("elements", row.elements);
    result.set("differing", stats.differing)
        .set("differing_in_replicas", stats.differing_in_replicas);
    if (stats.first.found()) {
      Shown const first = shown(row);
      Json at;
      at.set("index", place_json(row, stats.first.place)).set("place", first.place);
      at.set("a_value", first.a_value)
          .set("b_value", first.b_value)
          .set("a", stored_json(first.a))
          .set("b", stored_json(first.b));
      result.set("first", std::move(at));
    }
    if (values() && has_values(row.dtype_a)) add_value_json(result, row);
    return result;
  }

  void add_value_json(Json& result, Row const& row) const {
    TensorStats const& stats = *row.stats;
    auto const of_all = [&](double value) { return is_measured(stats) ? Json(value) : Json(); };
    result.set("max_abs", of_all(stats.absolute.value))
        .set("max_abs_at", place_json(row, stats.absolute.place));
    result.set("max_rel", of_all(stats.relative.value))
        .set("max_rel_at", place_json(row, stats.relative.place));
    result.set("mean_abs", of_all(mean_of(stats))).set("finite", stats.finite);
    result.set("finite_max_abs", stats.absolute.value)
        .set("finite_max_rel", stats.relative.value)
        .set("finite_mean_abs", mean_of(stats));
    result.set("max_a", stats.largest_a)
        .set("max_b", stats.largest_b)
        .set("nan_a", stats.nan_a)
        .set("nan_b", stats.nan_b);
    result.set("infinite_a", stats.infinite_a)
        .set("infinite_b", stats.infinite_b)
        .set("non_finite_differing", stats.non_finite_differing)
        .set("histogram", histogram_json({&stats, 1}));
  }

  std::string summary() const {
    std::uint64_t headers = 0;
    for (HeaderDifference const& one : findings_.matched->differences) headers += one.parts;
    std::uint64_t const all = rows_of_all_.size() + headers;
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
          std::pair(HeaderFault::dtype, "by dtype"),
          std::pair(HeaderFault::incomplete, "incomplete"),
          std::pair(HeaderFault::not_comparable, "not comparable")})
      add(count_of(fault), what);
    return fmt::format("{} ({}), {} compared", text, parts, human_bytes(bytes_));
  }

  /// Layer by layer, as elements are counted.
  std::uint64_t count_of(HeaderFault fault) const {
    std::uint64_t count = 0;
    for (HeaderDifference const& one : findings_.matched->differences)
      if (one.fault == fault) count += one.parts;
    return count;
  }

  std::uint64_t one_sided_states() const {
    std::uint64_t count = 0;
    for (HeaderDifference const& one : findings_.matched->differences)
      if (one.is_state && (one.fault == HeaderFault::missing || one.fault == HeaderFault::extra))
        count += one.parts;
    return count;
  }

  CompareFindings const& findings_;
  CompareRequest const& request_;
  Model const& model_;
  Catalog const& a_;
  std::uint64_t bytes_ = 0;
  std::vector<Row> rows_of_all_;
  std::vector<Row> differing_;
  std::optional<StoredPlaces> places_;  ///< of a
  std::size_t rows_ = 0;
  std::string text_;
};

}  // namespace

bool is_same(CompareFindings const& findings) {
  return findings.matched->differences.empty() && findings.sides->configs.differences.empty() &&
         std::all_of(findings.stats.begin(), findings.stats.end(),
                     [](TensorStats const& stats) { return stats.same(); });
}

Json compare_json(CompareFindings const& findings) { return Reporter(findings).json(); }
std::string compare_text(CompareFindings const& findings) { return Reporter(findings).text(); }

}  // namespace reshard
