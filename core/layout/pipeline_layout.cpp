#include "core/layout/pipeline_layout.hpp"

#include <algorithm>
#include <string>

#include "core/base/error.hpp"

namespace reshard {
namespace {

class LayoutUnroller {
 public:
  explicit LayoutUnroller(std::string_view text) : text_(text) {}

  /// The letters and bars, all repeats written out.
  std::string unrolled() {
    std::string out;
    for (char next = peek(); next != '\0'; next = peek())
      append(out, next == '(' ? group() : item());
    return out;
  }

 private:
  [[noreturn]] void refuse(std::string const& why) const {
    fail(ErrorKind::usage,
         "pipeline layout '{}': {}. It is made of E, t, m, L and |, x*n and (…)*n.", text_, why);
  }

  char peek() {
    while (at_ < text_.size() && (text_[at_] == ',' || text_[at_] == ' ' || text_[at_] == '\t' ||
                                  text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  std::string item() {
    char const letter = peek();
    if (letter != 'E' && letter != 't' && letter != 'm' && letter != 'L' && letter != '|')
      refuse(fmt::format("column {} has a character that has no meaning there", at_ + 1));
    ++at_;
    return repeated(std::string(1, letter), peek() == '*' ? count() : 1);
  }

  std::string group() {
    std::size_t const open = at_++;
    std::string inside;
    for (char next = peek(); next != ')'; next = peek()) {
      if (next == '\0') refuse(fmt::format("the '(' at column {} is never closed", open + 1));
      append(inside, item());
    }
    ++at_;
    if (peek() != '*')
      refuse(fmt::format("the group at column {} needs a count, as in '(tt|)*4'", open + 1));
    return repeated(inside, count());
  }

  /// Reads "*n".
  int count() {
    ++at_;
    std::size_t const begin = at_;
    int value = 0;
    for (char next = peek(); next >= '0' && next <= '9'; next = peek()) {
      value = value * 10 + (next - '0');
      if (value > most_pipeline_stages) too_long();
      ++at_;
    }
    if (at_ == begin) refuse(fmt::format("a number must follow the '*' at column {}", begin));
    return value;
  }

  [[noreturn]] void too_long() const {
    refuse(fmt::format("written out it has more than {} letters", most_pipeline_stages));
  }

  std::string repeated(std::string const& what, int times) const {
    if (what.size() * static_cast<std::size_t>(times) > most_pipeline_stages) too_long();
    std::string out;
    for (int i = 0; i < times; ++i) out += what;
    return out;
  }

  void append(std::string& out, std::string const& more) const {
    if (out.size() + more.size() > most_pipeline_stages) too_long();
    out += more;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<PipelineStage> parse_pipeline_layout(std::string_view text) {
  std::string const letters = LayoutUnroller(text).unrolled();
  auto const embeddings = std::ranges::count(letters, 'E');
  auto const heads = std::ranges::count(letters, 'L');
  if (embeddings != 1 || heads != 1)
    fail(ErrorKind::usage,
         "pipeline layout '{}': it has {} E and {} L. It needs exactly one embedding and one loss.",
         text, embeddings, heads);
  std::vector<PipelineStage> stages(1);
  for (char const letter : letters) {
    switch (letter) {
      case '|': stages.emplace_back(); break;
      case 't': ++stages.back().decoder_layers; break;
      case 'm': ++stages.back().mtp_layers; break;
      case 'E': stages.back().embedding = true; break;
      default: stages.back().head = true; break;
    }
  }
  return stages;
}

}  // namespace reshard
