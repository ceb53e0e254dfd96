#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/text/key_table.hpp"
#include "pipeline/job/job_spec.hpp"

namespace reshard::job {

using keys::Value;

/// Of run.self_check: for more elements of each tensor a comparison of all of them is cheaper.
inline constexpr std::int64_t most_self_check_elements = 1'000'000;

/// The table that only `reshard nightly` reads.
inline constexpr std::string_view nightly_table = "nightly";

/// One key of the job file: reading, printing and explaining all come from this one description.
struct Field : keys::Row<JobSpec> {
  std::string_view table;              ///< "target"
  std::vector<FormatId> formats = {};  ///< of targets that it means something for; empty: every one
  std::string axis = {};               ///< of a size of [target.layout]: its parallel axis

  std::string key() const { return std::string(table) + "." + name; }
};

/// Adds the keys of one table.
template <class Part>
void add(std::vector<Field>& out, std::string_view table, Part JobSpec::*part,
         std::vector<keys::Row<Part>> rows) {
  for (auto& row : rows) out.push_back({keys::within(part, std::move(row)), table});
}

/// Every key, in the order of the default job file.
std::vector<Field> const& fields();
/// The key of a parallel axis that is none of the usual ones: "layout.cp".
Field further_axis(std::string const& axis);
/// Every key of one job: fields() but those of axes that its layout does not have, and after the
/// layout's those of the further axes that it names.
std::vector<Field> fields_of(JobSpec const& spec);
/// Where the keys of a mesh stand.
inline constexpr std::string_view layout_table = "target.layout";

/// Whether a key takes the path of a file or folder, and nothing else.
bool is_path(std::string_view key);
/// "~" and "~/…" with the home folder of the environment (HOME) in place of the sign, where there
/// is one.
std::string with_home(std::string path);

/// Whether a key means something for this target.
bool has_meaning(Field const& field, FormatId target);

/// The job in the record of a target: the keys that decide over the content of the target or its
/// records, as print_spec() shows them. The others of [run] only say how a run went about it, so
/// targets that are the same have the same record.
std::string recorded_text(JobSpec const& spec);

/// A key with its value, and where it was given: "job.toml:12:9".
struct Given {
  Field const* field = nullptr;
  Value value;
  std::string place;
};

/// "job.toml:12:9: [target] layout.tp = -1"
std::string label(Given const& given);

/// Contradictions between the keys of one job, each with its place; `given` has each key once, and
/// only keys whose values were taken.
std::vector<std::string> contradictions(JobSpec const& spec, std::span<Given const> given);

/// The number of stages of a pipeline layout such as "Ettt|(tt|)*29,m|L" (here 32); an Error of
/// kind usage when the text is not one.
std::int64_t pipeline_stages(std::string_view layout);

}  // namespace reshard::job
