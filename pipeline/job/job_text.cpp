// Job files as text: what a job says, and the one with all defaults.

#include <functional>

#include <fmt/format.h>

#include "pipeline/job/job_field.hpp"
#include "pipeline/job/job_spec.hpp"

namespace reshard {

using job::Field;

namespace {

/// The lines of a job file for the keys that `wanted` holds for.
std::string printed(JobSpec const& spec, std::function<bool(Field const&)> const& wanted) {
  std::string out;
  std::string_view table;
  for (Field const& field : job::fields_of(spec)) {
    if (!job::has_meaning(field, spec.target.format) || field.table == job::nightly_table ||
        !wanted(field))
      continue;
    if (field.table != table)
      out += fmt::format("{}[{}]\n", table.empty() ? "" : "\n", field.table);
    table = field.table;
    out += fmt::format("{} = {}\n", field.name, field.show(spec));
  }
  return out;
}

}  // namespace

std::string print_spec(JobSpec const& spec) {
  return printed(spec, [](Field const& /*field*/) { return true; });
}

std::string short_job_text(JobSpec const& spec) {
  return printed(spec, [&spec, defaults = JobSpec()](Field const& field) {
    return field.required() || field.show(spec) != field.show(defaults);
  });
}

std::string job::recorded_text(JobSpec const& spec) {
  return printed(spec, [](Field const& field) {
    return field.table != "run" || field.name == "verify" || field.name == "self_check";
  });
}

std::vector<std::string> changed_keys(JobSpec const& spec) {
  JobSpec const defaults;
  std::vector<std::string> lines;
  for (Field const& field : job::fields_of(spec))
    if (std::string const value = field.show(spec);
        job::has_meaning(field, spec.target.format) &&
        (field.required() || value != field.show(defaults)))
      lines.push_back(fmt::format("{} = {}", field.key(), value));
  return lines;
}

std::string default_job_text() {
  JobSpec const defaults;
  std::string out =
      "# A job file of reshard: what to read, what to write, and with how much memory.\n# Run "
      "it: mpirun -n 4 reshard run job.toml\n";
  std::string_view table;
  for (Field const& field : job::fields()) {
    bool const of_nightly = field.table == job::nightly_table;
    if (field.table != table)
      out += fmt::format("\n{}[{}]\n", of_nightly ? "# Only for `reshard nightly`:\n# " : "",
                         field.table);
    table = field.table;
    std::string comment = fmt::format("# {}", field.comment);
    for (std::size_t at = comment.find('\n'); at != std::string::npos;
         at = comment.find('\n', at + 1))
      comment.insert(at + 1, "# ");
    // The file is a job that makes Megatron files; it stays a valid one.
    bool const foreign = of_nightly || !job::has_meaning(field, FormatId::megatron);
    out += fmt::format("{}\n{}{} = {}\n", comment, foreign ? "# " : "", field.name,
                       field.required() ? field.example : field.show(defaults));
  }
  return out;
}

}  // namespace reshard
