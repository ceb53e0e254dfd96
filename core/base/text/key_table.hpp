#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// Tables of the keys that a user sets: each row is bound to a member of a struct and defines how
/// its value is read, shown and explained. The functions at the end make rows.
namespace reshard::keys {

/// A value that no key takes; the text says what it is: "a table".
struct Foreign {
  std::string what;
};
/// A value as a job file or the command line gave it; an array is one of texts.
using Value = std::variant<std::int64_t, bool, std::string, std::vector<std::string>, Foreign>;

enum class Kind { text, texts, choice, number, flag, size };

/// One key of a table whose values an Owner holds.
template <class Owner>
struct Row {
  std::string name;  ///< "layout.tp"
  Kind kind = Kind::text;
  std::string_view comment = {};          ///< for the default job file
  std::vector<std::string> choices = {};  ///< the words of a choice
  std::string range = {};                 ///< of a number: "1 to 32768"
  std::string_view example = {};          ///< a required key's value in the default job file

  /// Takes a value that fits the kind, or returns the text of an error.
  std::function<std::optional<std::string>(Owner&, Value const&)> set = {};
  /// The value as TOML.
  std::function<std::string(Owner const&)> show = {};

  bool required() const { return !example.empty(); }
};

/// The value as a sentence shows it, shortened and safe on a terminal: 4, true, "text", an array.
std::string shown(Value const& value);

/// The value that a word of the command line is for a key of this kind: a number or a flag where
/// the key takes one and the word is one, the texts between commas for a list, else the text.
Value value_from_word(Kind kind, std::string_view word);

/// "512 MiB", "5 GB", "4096": an integer and a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB,
/// in capitals or not); nullopt for any other text.
std::optional<std::uint64_t> bytes_from_text(std::string_view text);

/// The shortest such text that is exactly this size.
std::string text_from_bytes(std::uint64_t bytes);

/// "expected one of keep, drop, found "dorp" (did you mean drop?)".
std::string expected_one_of(std::vector<std::string> const& words, Value const& value);

/// The word in `words` that a value means: true means "on", else "auto", and false means "off",
/// else "never". nullopt if there is none.
std::optional<std::string> word_in(std::vector<std::string> const& words, Value const& value);

/// Stores the value in `into`, or returns the text of an error.
std::optional<std::string> read_text(Value const& value, std::string& into);
/// A list of texts; one text is a list of it, and an empty one the empty list.
std::optional<std::string> read_texts(Value const& value, std::vector<std::string>& into);
std::optional<std::string> read_flag(Value const& value, bool& into);
std::optional<std::string> read_size(Value const& value, std::uint64_t& into);
std::optional<std::string> read_size_or_auto(Value const& value, std::uint64_t& into);
std::optional<std::string> read_number(Value const& value, std::int64_t least, std::int64_t most,
                                       std::int64_t& into);
/// Values as TOML.
std::string text_shown(std::string const& value);
std::string texts_shown(std::vector<std::string> const& value);
std::string flag_shown(bool value);
std::string size_shown(std::uint64_t bytes);
std::string size_or_auto_shown(std::uint64_t bytes);

/// "1 to 8", or "1 or more".
std::string range_text(std::int64_t least, std::int64_t most);

/// The row with the member's value read by read(value, member), shown by show(member).
template <class Owner, class T, class Read, class Show>
Row<Owner> bound(Row<Owner> row, T Owner::*member, Read read, Show show) {
  row.set = [=](Owner& owner, Value const& value) { return read(value, owner.*member); };
  row.show = [=](Owner const& owner) { return show(owner.*member); };
  return row;
}

/// A text without control characters.
template <class Owner>
Row<Owner> text(std::string name, std::string Owner::*member, std::string_view comment) {
  return bound(Row<Owner>{std::move(name), Kind::text, comment}, member, read_text, text_shown);
}

/// A list of texts without control characters.
template <class Owner>
Row<Owner> texts(std::string name, std::vector<std::string> Owner::*member,
                 std::string_view comment) {
  return bound(Row<Owner>{std::move(name), Kind::texts, comment}, member, read_texts, texts_shown);
}

/// true or false.
template <class Owner>
Row<Owner> flag(std::string name, bool Owner::*member, std::string_view comment) {
  return bound(Row<Owner>{std::move(name), Kind::flag, comment}, member, read_flag, flag_shown);
}

/// Bytes above zero, as a number or with a unit.
template <class Owner>
Row<Owner> size(std::string name, std::uint64_t Owner::*member, std::string_view comment) {
  return bound(Row<Owner>{std::move(name), Kind::size, comment}, member, read_size, size_shown);
}

/// A size, or "auto", which is 0 in the member.
template <class Owner>
Row<Owner> size_or_auto(std::string name, std::uint64_t Owner::*member, std::string_view comment) {
  return bound(Row<Owner>{std::move(name), Kind::size, comment}, member, read_size_or_auto,
               size_or_auto_shown);
}

/// An integer from `least` to `most`.
template <class Owner, class T>
Row<Owner> number(std::string name, T Owner::*member, std::int64_t least, std::int64_t most,
                  std::string_view comment) {
  Row<Owner> row{std::move(name), Kind::number, comment, {}, range_text(least, most)};
  return bound(
      std::move(row), member,
      [=](Value const& value, T& into) {
        std::int64_t read = 0;
        auto problem = read_number(value, least, most, read);
        if (!problem) into = static_cast<T>(read);
        return problem;
      },
      [](T value) { return std::to_string(value); });
}

/// One of several words, and the values that they stand for.
template <class Owner, class T>
Row<Owner> one_of(std::string name, T Owner::*member, std::vector<std::pair<std::string, T>> words,
                  std::string_view comment) {
  Row<Owner> row{std::move(name), Kind::choice, comment};
  for (auto const& [word, value] : words) row.choices.push_back(word);
  return bound(
      std::move(row), member,
      [words, choices = row.choices](Value const& value, T& into) -> std::optional<std::string> {
        auto const given = word_in(choices, value);
        for (auto const& [word, meant] : words)
          if (given && word == *given) {
            into = meant;
            return std::nullopt;
          }
        return expected_one_of(choices, value);
      },
      [words](T const& value) {
        for (auto const& [word, meant] : words)
          if (meant == value) return text_shown(word);
        return text_shown("");
      });
}

/// one_of() for an enum whose values from 0 have the words in this order.
template <class Owner, class E>
Row<Owner> choice(std::string name, E Owner::*member, std::vector<std::string> const& words,
                  std::string_view comment) {
  std::vector<std::pair<std::string, E>> values;
  for (std::string const& word : words) values.emplace_back(word, static_cast<E>(values.size()));
  return one_of(std::move(name), member, std::move(values), comment);
}

template <class Owner>
Row<Owner> with_example(Row<Owner> row, std::string_view example) {
  row.example = example;
  return row;
}

/// The row of an Owner as a row of the object that contains the owner.
template <class Outer, class Owner>
Row<Outer> within(Owner Outer::*part, Row<Owner> row) {
  return {std::move(row.name),
          row.kind,
          row.comment,
          std::move(row.choices),
          std::move(row.range),
          row.example,
          [part, set = std::move(row.set)](Outer& outer, Value const& value) {
            return set(outer.*part, value);
          },
          [part, show = std::move(row.show)](Outer const& outer) { return show(outer.*part); }};
}

}  // namespace reshard::keys
