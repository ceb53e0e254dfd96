#include "pipeline/job/option_words.hpp"

#include <utility>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

/// model.map = "none" becomes --map none. Stored names are those of all sides.
void replace_choices(std::string& text, std::string_view key, std::string_view option) {
  std::string const begin = fmt::format("{} = \"", key);
  for (std::size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at)) {
    std::size_t const word = at + begin.size();
    std::size_t const end = text.find('"', word);
    if (end == std::string::npos) return;
    std::string const value = text.substr(word, end - word);
    text.replace(
        at, end + 1 - at,
        fmt::format("{} {}", value == "none" ? option.substr(0, option.find('-', 2)) : option,
                    value));
  }
}

}  // namespace

std::string in_option_words(std::string sentence, std::string_view config_option) {
  std::string_view const side = config_option.substr(std::string_view("--config").size());
  std::string const map = fmt::format("--map{}", side);
  std::string const prefix = fmt::format("--prefix{}", side);
  std::string const give = fmt::format("give {}", config_option);
  std::string const begin = fmt::format("Give {}", config_option);
  for (std::string_view const key : {"source.config", "target.reference"}) {
    replace_all(sentence, fmt::format("set {} to", key), give);
    replace_all(sentence, fmt::format("Set {} to", key), begin);
    replace_all(sentence, fmt::format("set {}", key), give);
    replace_all(sentence, fmt::format("as {}", key), fmt::format("with {}", config_option));
    replace_all(sentence, key, config_option);
  }
  replace_all(sentence, "[source] config: ", fmt::format("{}: ", config_option));
  replace_choices(sentence, "[model] map", map);
  replace_choices(sentence, "model.map", map);
  for (std::string_view const key : {"[source] prefix", "source.prefix"})
    replace_all(sentence, fmt::format("{} = ", key), prefix + " ");
  replace_all(sentence, "Set map to \"auto\"", fmt::format("Give {} auto", map));
  replace_all(sentence, "model.map", map);
  replace_all(sentence, "source.prefix", prefix);
  for (std::string_view const option : {"--map", "--prefix"}) {
    replace_all(sentence, fmt::format("Set {}", option), fmt::format("Give {}", option));
    replace_all(sentence, fmt::format("set {}", option), fmt::format("give {}", option));
  }
  // without a job file the number can only be that of the folder's own record
  replace_all(sentence, "[model] true_vocab_size = ", "reshard.json records a vocabulary of ");
  replace_all(sentence, "correct the key or leave it out", "restore reshard.json or remove it");
  replace_all(sentence, "model.true_vocab_size", "reshard.json");
  return sentence;
}

void with_words(Reword const& reword, std::function<void()> const& work) {
  try {
    work();
  } catch (Error const& error) {
    Error const told(error.kind(), reword(error.sentence()));
    throw error.is_agreed() ? told.agreed() : told;
  }
}

void with_option_words(std::string_view config_option, std::function<void()> const& work) {
  with_words(
      [&](std::string sentence) { return in_option_words(std::move(sentence), config_option); },
      work);
}

}  // namespace reshard
