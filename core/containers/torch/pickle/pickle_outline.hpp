#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reshard::pickle {

/// A reference pickle for comparison with others. Those of many ranks differ in few numbers and
/// texts, and comparing takes far less time than parsing.
class Outline {
 public:
  /// Keys of nested dicts or of attributes: {"args", "rank"}.
  using Path = std::vector<std::string_view>;
  /// The integer at the end of each path; nullopt for other values.
  using Values = std::vector<std::optional<std::int64_t>>;

  /// `free`: paths whose numbers, texts and bytes may differ, except those shared with another part
  /// of the document or used by tensors and names of classes. Pre: parse() accepts all of the
  /// bytes.
  Outline(std::string bytes, std::span<Path const> free);

  /// nullopt if the bytes differ in more than that, or could have another meaning. Otherwise
  /// parse() would return the same document except for the free values.
  std::optional<Values> compare(std::string_view bytes) const;

 private:
  enum class Kind { integer, real, text, bytes };
  /// An opcode whose argument may differ.
  struct Atom {
    std::size_t begin = 0;
    std::size_t end = 0;
    Kind kind = Kind::integer;
    bool latin1 = false;                   ///< of a text: every character is below 256
    std::optional<std::size_t> path = {};  ///< number of the path whose value it is
  };
  struct Token {
    Kind kind = Kind::integer;
    std::size_t size = 0;
    std::string_view content;
  };

  static std::optional<Token> token_at(std::string_view bytes, std::size_t at);
  static bool is_latin1(std::string_view text);

  std::string bytes_;
  Values values_;
  std::vector<Atom> atoms_;  ///< by place
};

}  // namespace reshard::pickle
