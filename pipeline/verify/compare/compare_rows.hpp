#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/verify/compare/compare_report.hpp"

namespace reshard {

/// An element on one side, as its file has it.
struct ComparedPlace {
  std::string file;
  std::string name;
  std::optional<std::uint64_t> offset_bytes = 0;  ///< nullopt: computed of several elements
};

/// A differing element with everything that can be said about it.
struct ComparedElement {
  std::vector<Index> indices;
  std::string place;
  std::string a_value;
  std::string b_value;
  ComparedPlace a;
  ComparedPlace b;
};

/// A tensor, or a layer of one, and what was found in it.
struct ComparedRow {
  std::uint32_t tensor = 0;
  std::optional<Index> layer;
  DType dtype_a = DType::u8;
  DType dtype_b = DType::u8;
  std::uint64_t elements = 0;
  TensorStats const* stats = nullptr;
};

/// The rows of a comparison, and what text and JSON say of them alike. Borrows the findings.
class CompareRows {
 public:
  explicit CompareRows(CompareFindings const& findings);

  CompareFindings const& findings() const { return findings_; }
  CompareRequest const& request() const { return request_; }
  Model const& model() const { return model_; }
  bool values() const { return request_.comparison == Comparison::values; }
  std::uint64_t bytes() const { return bytes_; }
  std::vector<ComparedRow> const& all() const { return all_; }
  /// Those that differ; of values those with NaN or infinity on one side first, then the largest
  /// relative difference.
  std::vector<ComparedRow> const& differing() const { return differing_; }
  std::vector<ConfigDifference> const& configs() const;

  /// "layer.3.attn.q"
  std::string name_of(ComparedRow const& row) const;
  /// The first differing element. Pre: the row has one.
  ComparedElement first_of(ComparedRow const& row) const;
  std::vector<Index> indices_at(ComparedRow const& row, std::uint64_t place) const;
  /// "same: 12 tensors, 1.0 GiB", without a newline.
  std::string summary() const;

 private:
  void add_part(TensorPart const& part, ComparedTensor const& tensor, TensorStats const& stats);
  bool same_weights() const;
  std::uint64_t count_of(HeaderFault fault) const;

  CompareFindings const& findings_;
  CompareRequest const& request_;
  Model const& model_;
  Catalog const& a_;
  std::uint64_t bytes_ = 0;
  std::vector<ComparedRow> all_;
  std::vector<ComparedRow> differing_;
  std::optional<StoredPlaces> places_;  ///< of a
};

/// How many indices an axis of a domain has.
Index extent_of(DomainAxis const& axis);
/// "model_type: a in a, b in b"
std::string config_text(ConfigDifference const& one);
/// Over the elements that are finite on both sides; 0 where none is.
double mean_difference(TensorStats const& stats);
/// Whether the numbers of finite elements say how far all elements are apart: a NaN or an infinity
/// on one side is at no distance.
bool is_measured(TensorStats const& stats);

}  // namespace reshard
