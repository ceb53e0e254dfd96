#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/formats/target_job.hpp"

namespace reshard::megatron {

/// What all targets with Megatron's names have in common: whose layers they are, how experts are
/// stored, and what their args say.
class MegatronNames {
 public:
  using Args = std::vector<std::pair<std::string, Json>>;

  /// `job` outlives this.
  explicit MegatronNames(MappedTarget const& job);

  TargetRequest request;  ///< that of the job, with spec and form decided

  /// Options of the target's side; `local`: files hold what one rank has.
  SideOptions side_options(bool local) const;
  /// Attributes to set besides the parallel sizes.
  Args args() const;
  /// Every argument that the target will have.
  Json all_args(Side const& side) const;
  /// Warns where padding and vocabulary cannot be distinguished.
  void warn_of_unknown_padding(std::vector<std::string>& warnings) const;

 private:
  std::string default_form() const;
  std::string source_form() const;
  bool all_rows_are_data() const;
  std::optional<Index> repadded() const;
  Args made_args() const;
  bool makes_args() const;

  MappedTarget const& job_;
};

}  // namespace reshard::megatron
