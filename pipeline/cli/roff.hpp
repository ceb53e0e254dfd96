#pragma once

#include <string>
#include <string_view>

namespace reshard {

/// Writes a page in the man(7) macros. Texts are plain; what roff would read as a request or an
/// escape is made harmless.
class Roff {
 public:
  /// `date` as 2026-11-22, `source` such as "reshard 0.1.0".
  Roff(std::string_view title, int section, std::string_view date, std::string_view source,
       std::string_view manual);

  Roff& section(std::string_view title);
  Roff& subsection(std::string_view title);
  Roff& paragraph(std::string_view text);
  /// A term, and its text indented below it. In `term`, parts between '<' and '>' are shown as
  /// placeholders.
  Roff& item(std::string_view term, std::string_view text);
  /// Lines as they are, in a fixed-width font.
  Roff& code(std::string_view lines);

  std::string const& text() const { return text_; }

 private:
  void filled(std::string_view text);

  std::string text_;
  bool fresh_ = true;  ///< a heading has just been written: no paragraph begins after it
};

}  // namespace reshard
