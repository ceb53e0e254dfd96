#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pipeline/job/job_spec.hpp"

namespace reshard::job {

/// A value that no key takes; the text says what it is: "an array".
struct Foreign {
  std::string what;
};
/// A value as the job file or the command line gave it.
using Value = std::variant<std::int64_t, bool, std::string, Foreign>;

enum class FieldKind { text, choice, number, flag, size };
/// For which target formats a key means something: a set of bits.
using FieldScope = unsigned;
constexpr FieldScope only_for(FormatId format) { return 1U << static_cast<unsigned>(format); }
inline constexpr FieldScope every_target = ~0U;

/// Of run.self_check: for more elements of each tensor a comparison of all of them is cheaper.
inline constexpr std::int64_t most_self_check_elements = 1'000'000;

/// The table that only `reshard nightly` reads.
inline constexpr std::string_view nightly_table = "nightly";

/// One key of the job file: reading, printing and explaining all come from this one description.
struct Field {
  std::string_view table;  ///< "target"
  std::string name;        ///< "layout.tp"
  FieldKind kind = FieldKind::text;
  FieldScope scope = every_target;
  std::string_view comment = {};          ///< for the default job file
  std::vector<std::string> choices = {};  ///< the words of a choice, in the order of its enum
  std::string range = {};                 ///< of a number: "1 to 32768"
  std::string_view example = {};          ///< a required key's value in the default job file
  std::string axis = {};                  ///< of a size of [target.layout]: its parallel axis

  /// Takes a value that fits the kind, or says what is wrong with it.
  std::function<std::optional<std::string>(JobSpec&, Value const&)> set = {};
  /// The value as TOML.
  std::function<std::string(JobSpec const&)> show = {};

  std::string key() const { return std::string(table) + "." + name; }
  bool required() const { return !example.empty(); }
};

/// Every key, in the order of the default job file.
std::vector<Field> const& fields();
/// The key of a parallel axis that is none of the usual ones: "layout.cp".
Field further_axis(std::string const& axis);
/// Every key of one job: fields() but those of axes that its layout does not have, and after the
/// layout's those of the further axes that it names.
std::vector<Field> fields_of(JobSpec const& spec);
/// Where the keys of a mesh stand.
inline constexpr std::string_view layout_table = "target.layout";

/// Whether a key means something for this target.
bool has_meaning(Field const& field, FormatId target);

/// The value as a sentence shows it, shortened and safe on a terminal: 4, true, "text", an array.
std::string shown(Value const& value);

/// The value that a word of the command line is for this key: a number or a flag where the key
/// takes one and the word is one, else the text.
Value value_from_word(Field const& field, std::string_view word);

/// "512 MiB", "5 GB", "4096": a whole number and a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB);
/// nothing for any other text.
std::optional<std::uint64_t> bytes_from_text(std::string_view text);

/// The shortest such text that is exactly this size.
std::string text_from_bytes(std::uint64_t bytes);

/// What the record of a target says of its job: the keys that decide what the target or its records
/// hold, as print_spec() shows them. The others of [run] only say how a run went about it, so
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

/// What disagrees between the keys of one job, each with its place; `given` has each key once, and
/// only keys whose values were taken.
std::vector<std::string> contradictions(JobSpec const& spec, std::span<Given const> given);

/// The number of stages of a pipeline layout such as "Ettt|(tt|)*29,m|L" (here 32); an Error of
/// kind usage when the text is not one.
std::int64_t pipeline_stages(std::string_view layout);

}  // namespace reshard::job
