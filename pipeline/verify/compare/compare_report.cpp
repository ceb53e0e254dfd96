#include "pipeline/verify/compare/compare_report.hpp"

#include <algorithm>

#include "core/base/tables/counted.hpp"
#include "core/base/text/shown_name.hpp"
#include "pipeline/verify/compare/compare_rows.hpp"
#include "pipeline/verify/compare/difference_histogram.hpp"

namespace reshard {
namespace {

class TextReport {
 public:
  explicit TextReport(CompareFindings const& findings) : rows_(findings) {}

  std::string text() {
    for (std::string const& note : rows_.findings().sides->notes) text_ += "note: " + note + "\n";
    for (auto const& [side, letter] :
         {std::pair(&rows_.findings().sides->a, 'a'), std::pair(&rows_.findings().sides->b, 'b')})
      if (std::string const left = not_compared(*side, rows_.findings().sides->by_names);
          !left.empty())
        text_ += fmt::format("not compared in {} ({}): {}\n", letter, side->path.string(), left);
    if (std::string const& why = rows_.findings().sides->configs.not_compared; !why.empty())
      text_ += fmt::format("not compared: the configs: {}\n", why);
    add_states();
    for (ConfigDifference const& one : rows_.configs())
      text_ += fmt::format("{:<15} {}\n", "other config", config_text(one));
    for (HeaderDifference const& difference : rows_.findings().matched->differences)
      add_row([&] { add(difference); });
    if (rows_.values() && !rows_.differing().empty())
      text_ += fmt::format("{:>11} {:>11} {:>11}  {:<20} {:<11} tensor\n", "max |a-b|", "max rel",
                           "mean |a-b|", "differing", "dtype");
    for (ComparedRow const& row : rows_.differing())
      add_row([&] { rows_.values() ? add_values(row) : add_bytes(row); });
    if (rows_.request().histogram) text_ += histogram_text(rows_.findings().stats);
    if (printed_ > rows_.request().row_limit)
      text_ += fmt::format("… {} more rows: --limit {} shows all\n",
                           printed_ - rows_.request().row_limit, printed_);
    if (!rows_.values() && one_sided_states() > 0)
      text_ += fmt::format(
          "note: {} of optimizer state that one side does not have: --weights-only leaves it out\n",
          counted(one_sided_states(), "tensor"));
    return text_ + rows_.summary() + "\n";
  }

 private:
  static std::string dtype_text(ComparedRow const& row) {
    return row.dtype_a == row.dtype_b
               ? std::string(name(row.dtype_a))
               : fmt::format("{} / {}", name(row.dtype_a), name(row.dtype_b));
  }

  template <class Add>
  void add_row(Add add) {
    if (printed_++ < rows_.request().row_limit) add();
  }

  void add_states() {
    for (auto const& [count, letter] : {std::pair(rows_.findings().matched->states_only_a, 'a'),
                                        std::pair(rows_.findings().matched->states_only_b, 'b')})
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

  std::string count_text(ComparedRow const& row) const {
    TensorStats const& stats = *row.stats;
    std::string text = fmt::format("{} of {}", stats.differing, row.elements);
    if (stats.differing_in_replicas > 0)
      text += fmt::format(" and {} in replicas of b", stats.differing_in_replicas);
    return text;
  }

  static std::string place_text(ComparedPlace const& at) {
    return fmt::format("{}: '{}', {}\n", at.file, shown_name(at.name),
                       at.offset_bytes ? fmt::format("byte {} of the file", *at.offset_bytes)
                                       : "computed of several elements");
  }

  void add_bytes(ComparedRow const& row) {
    ComparedElement const first = rows_.first_of(row);
    text_ += fmt::format("{:<15} {} {} {}: {}\n", "differs", shown_name(rows_.name_of(row)),
                         dtype_text(row), shape_text(rows_.model(), row.tensor, row.layer ? 1 : 0),
                         count_text(row));
    text_ +=
        fmt::format("  first at {}: {} in a, {} in b\n", first.place, first.a_value, first.b_value);
    text_ += "  a: " + place_text(first.a);
    text_ += "  b: " + place_text(first.b);
  }

  void add_values(ComparedRow const& row) {
    TensorStats const& stats = *row.stats;
    for (double const value : {stats.absolute.value, stats.relative.value, mean_difference(stats)})
      text_ += is_measured(stats) ? fmt::format("{:>11.4g} ", value) : fmt::format("{:>11} ", "-");
    text_ += fmt::format(" {:<20} {:<11} {}", count_text(row), dtype_text(row),
                         shown_name(rows_.name_of(row)));
    if (stats.differing_in_replicas > 0 && has_values(row.dtype_b))
      text_ += fmt::format(" (in replicas: max |a-b| {:.4g}, max rel {:.4g}{})",
                           stats.absolute_in_replicas, stats.relative_in_replicas,
                           stats.non_finite_in_replicas == 0
                               ? ""
                               : fmt::format(", NaN or infinite {} times on one side",
                                             stats.non_finite_in_replicas));
    if (!has_values(row.dtype_b))
      text_ += fmt::format(" ({} is compared bit by bit)", name(row.dtype_b));
    if (stats.nan_a + stats.nan_b + stats.infinite_a + stats.infinite_b > 0)
      text_ +=
          fmt::format(" (NaN {} / {}, infinite {} / {}, {} of them not alike)", stats.nan_a,
                      stats.nan_b, stats.infinite_a, stats.infinite_b, stats.non_finite_differing);
    if (!is_measured(stats) && stats.absolute.value > 0)
      text_ += fmt::format(" (finite: max |a-b| {:.4g}, max rel {:.4g}, mean {:.4g})",
                           stats.absolute.value, stats.relative.value, mean_difference(stats));
    text_ += "\n";
  }

  std::uint64_t one_sided_states() const {
    std::uint64_t count = 0;
    for (HeaderDifference const& one : rows_.findings().matched->differences)
      if (one.is_state && (one.fault == HeaderFault::missing || one.fault == HeaderFault::extra))
        count += one.parts;
    return count;
  }

  CompareRows rows_;
  std::size_t printed_ = 0;
  std::string text_;
};

class JsonReport {
 public:
  explicit JsonReport(CompareFindings const& findings) : rows_(findings) {}

  Json json() {
    Json result;
    result.set("a", rows_.request().a.string())
        .set("b", rows_.request().b.string())
        .set("comparison", rows_.values() ? "values" : "bytes");
    result.set("tensors_by", rows_.findings().sides->by_names ? "stored names" : "map")
        .set("same", is_same(rows_.findings()))
        .set("summary", rows_.summary());
    result.set("tensors_compared", rows_.all().size())
        .set("tensors_differing", rows_.differing().size())
        .set("bytes", rows_.bytes());
    Json notes = Json::array();
    for (std::string const& note : rows_.findings().sides->notes) notes.push(note);
    Json left;
    left.set("a", not_compared(rows_.findings().sides->a, rows_.findings().sides->by_names))
        .set("b", not_compared(rows_.findings().sides->b, rows_.findings().sides->by_names));
    left.set("optimizer_tensors_only_in_a", rows_.findings().matched->states_only_a)
        .set("optimizer_tensors_only_in_b", rows_.findings().matched->states_only_b);
    Json headers = Json::array();
    for (HeaderDifference const& difference : rows_.findings().matched->differences)
      headers.push(Json()
                       .set("kind", name(difference.fault))
                       .set("tensor", difference.tensor)
                       .set("a", difference.a)
                       .set("b", difference.b)
                       .set("parts", difference.parts));
    Json tensors = Json::array();
    if (rows_.values())
      for (ComparedRow const& row : rows_.all()) tensors.push(row_json(row));
    else
      for (ComparedRow const& row : rows_.differing()) tensors.push(row_json(row));
    Json other = Json::array();
    for (ConfigDifference const& one : rows_.configs())
      other.push(Json().set("key", one.key).set("a", one.a).set("b", one.b));
    result.set("config_differences", std::move(other))
        .set("configs_not_compared", rows_.findings().sides->configs.not_compared);
    if (rows_.values()) result.set("histogram", histogram_json(rows_.findings().stats));
    result.set("notes", std::move(notes))
        .set("not_compared", std::move(left))
        .set("header_differences", std::move(headers));
    return result.set("tensors", std::move(tensors));
  }

 private:
  static Json stored_json(ComparedPlace const& stored) {
    return std::move(Json()
                         .set("file", stored.file)
                         .set("name", stored.name)
                         .set("offset", stored.offset_bytes ? Json(*stored.offset_bytes) : Json()));
  }

  Json place_json(ComparedRow const& row, std::uint64_t place) const {
    if (place == DifferingElement::nowhere) return {};
    Json result = Json::array();
    for (Index const index : rows_.indices_at(row, place)) result.push(index);
    return result;
  }

  Json row_json(ComparedRow const& row) const {
    TensorStats const& stats = *row.stats;
    Json axes = Json::array();
    Json shape = Json::array();
    for (DomainAxis const& axis : rows_.model().domain(rows_.model().tensors()[row.tensor])) {
      axes.push(rows_.model().axes()[axis.axis].name);
      shape.push(extent_of(axis));
    }
    Json result;
    result.set("name", rows_.name_of(row))
        .set("dtype_a", name(row.dtype_a))
        .set("dtype_b", name(row.dtype_b));
    if (row.layer) result.set("layer", *row.layer);
    result.set("axes", std::move(axes))
        .set("shape", std::move(shape))
        .set("elements", row.elements);
    result.set("differing", stats.differing)
        .set("differing_in_replicas", stats.differing_in_replicas);
    if (stats.first.found()) {
      ComparedElement const first = rows_.first_of(row);
      Json at;
      at.set("index", place_json(row, stats.first.place)).set("place", first.place);
      at.set("a_value", first.a_value)
          .set("b_value", first.b_value)
          .set("a", stored_json(first.a))
          .set("b", stored_json(first.b));
      result.set("first", std::move(at));
    }
    if (rows_.values() && has_values(row.dtype_a)) add_value_json(result, row);
    if (result.find("max_abs") != nullptr && stats.differing_in_replicas > 0)
      result.set("max_abs_in_replicas", stats.absolute_in_replicas)
          .set("max_rel_in_replicas", stats.relative_in_replicas)
          .set("non_finite_in_replicas", stats.non_finite_in_replicas);
    return result;
  }

  void add_value_json(Json& result, ComparedRow const& row) const {
    TensorStats const& stats = *row.stats;
    auto const of_all = [&](double value) { return is_measured(stats) ? Json(value) : Json(); };
    result.set("max_abs", of_all(stats.absolute.value))
        .set("max_abs_at", place_json(row, stats.absolute.place));
    result.set("max_rel", of_all(stats.relative.value))
        .set("max_rel_at", place_json(row, stats.relative.place));
    result.set("mean_abs", of_all(mean_difference(stats))).set("finite", stats.finite);
    result.set("finite_max_abs", stats.absolute.value)
        .set("finite_max_rel", stats.relative.value)
        .set("finite_mean_abs", mean_difference(stats));
    result.set("max_a", stats.largest_a)
        .set("max_b", stats.largest_b)
        .set("nan_a", stats.nan_a)
        .set("nan_b", stats.nan_b);
    result.set("infinite_a", stats.infinite_a)
        .set("infinite_b", stats.infinite_b)
        .set("non_finite_differing", stats.non_finite_differing)
        .set("histogram", histogram_json({&stats, 1}));
  }

  CompareRows rows_;
};

}  // namespace

bool is_same(CompareFindings const& findings) {
  return findings.matched->differences.empty() && findings.sides->configs.differences.empty() &&
         std::all_of(findings.stats.begin(), findings.stats.end(),
                     [](TensorStats const& stats) { return stats.same(); });
}

Json compare_json(CompareFindings const& findings) { return JsonReport(findings).json(); }
std::string compare_text(CompareFindings const& findings) { return TextReport(findings).text(); }

}  // namespace reshard
