#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/json.hpp"
#include "core/base/text.hpp"
#include "pipeline/job/job_field.hpp"

namespace reshard::job {

// The kinds of keys that a job file has. Each function makes a row of the table of keys.

/// Far above any cluster, far below where a product of two sizes leaves the range of an int.
inline constexpr std::int64_t most_ranks = 32768;

/// "expected …, found …": what is wrong with a value.
std::optional<std::string> expected(std::string_view what, Value const& value);

/// "expected one of keep, drop, found "dorp" (did you mean drop?)".
std::optional<std::string> expected_one_of(std::vector<std::string> const& words,
                                           Value const& value);

/// A member of the spec as one function for reading and writing.
template <class T>
using At = T& (*)(JobSpec&);

/// The member's value; printing has a const spec, and the one accessor takes a mutable one.
template <class T>
T read(At<T> at, JobSpec const& spec) {
  JobSpec copy = spec;
  return at(copy);
}

template <class E>
Field choice(std::string_view table, std::string name, At<E> at, std::vector<std::string> words,
             std::string_view comment) {
  Field field{.table = table,
              .name = std::move(name),
              .kind = FieldKind::choice,
              .comment = comment,
              .choices = words};
  field.show = [at, words](JobSpec const& spec) {
    return json_quoted(words[static_cast<std::size_t>(read(at, spec))]);
  };
  field.set = [at, words = std::move(words)](JobSpec& spec,
                                             Value const& value) -> std::optional<std::string> {
    auto const* text = std::get_if<std::string>(&value);
    for (std::size_t i = 0; text != nullptr && i < words.size(); ++i)
      if (words[i] == *text) {
        at(spec) = static_cast<E>(i);
        return std::nullopt;
      }
    return expected_one_of(words, value);
  };
  return field;
}

/// A text without control characters.
Field text(std::string_view table, std::string name, At<std::string> at, std::string_view comment);

/// A number that is read and written by functions.
Field number(std::string_view table, std::string name, std::int64_t least, std::int64_t most,
             std::string_view comment, std::function<std::int64_t(JobSpec const&)> get,
             std::function<void(JobSpec&, std::int64_t)> put);

template <class T>
Field number(std::string_view table, std::string name, At<T> at, std::int64_t least,
             std::int64_t most, std::string_view comment) {
  return number(
      table, std::move(name), least, most, comment,
      [at](JobSpec const& spec) { return static_cast<std::int64_t>(read(at, spec)); },
      [at](JobSpec& spec, std::int64_t value) { at(spec) = static_cast<T>(value); });
}

/// true or false.
Field flag(std::string_view table, std::string name, At<bool> at, std::string_view comment);

/// Bytes above zero, as a number or with a unit.
Field size(std::string_view table, std::string name, At<std::uint64_t> at,
           std::string_view comment);

/// A size, or "auto", which is 0 in the spec.
Field size_or_auto(std::string_view table, std::string name, At<std::uint64_t> at,
                   std::string_view comment);

Field with_example(Field field, std::string_view example);
Field with_scope(FieldScope scope, Field field);

}  // namespace reshard::job
