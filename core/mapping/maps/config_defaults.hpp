#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_file.hpp"

namespace reshard {

/// The fact under a dotted key ("text_config.hidden_size"); null when absent.
Json fact(Json const& facts, std::string_view key);

/// The words of a dotted key: {"thinker_config", "text_config"}. None of "".
std::vector<std::string> words_of(std::string_view key);

/// The facts with the members of one of them before those of the top level: `text_config` of a
/// multimodal config.json. Of a dotted one, those further inside come before those outside.
/// `top.KEY` is the top level's.
Json scoped_facts(Json const& facts, std::string const& member);

/// The config with what the family's class takes where a member is left out: [defaults], evaluated
/// over the config as it is. A member that is null is there, an object that is null is not. What is
/// added comes last, in the member that the map's facts are in.
Json completed_config(MapFile const& family, Json config);

}  // namespace reshard
