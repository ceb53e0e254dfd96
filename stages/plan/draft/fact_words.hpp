#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_file.hpp"

namespace reshard {

/// A fact that a map asks for under one word, and the word of config.json for it.
struct OtherWord {
  std::string fact;
  std::string word;
};

/// Other words of configs for the maps' facts: for those that `facts` does not state, the first of
/// their other words that it does. `asked`: the facts of a map. The number of layers is also found
/// by its value, `layers` (0: not known).
std::vector<OtherWord> other_words(std::vector<std::string> const& asked, Json const& facts,
                                   Index layers);

/// The text of an expression with other words for facts.
std::string with_other_words(std::string_view expression, std::vector<OtherWord> const& words);

/// The member of a config.json that describes its text model, where the top level does not; "" for
/// the top level.
std::string text_member(Json const& config);

}  // namespace reshard
