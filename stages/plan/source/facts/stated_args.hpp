#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/mapping/model.hpp"

namespace reshard {

/// Megatron's args of a checkpoint: those that it stores, where they describe a model; else those
/// that the table of its shape (settings/NAME.toml in a map folder) makes of the settings beside
/// the weights; null where neither says what the model is. Errors of kind usage: no such table, or
/// one with a mistake. Of kind source: a number in the settings that is NaN or infinite.
Json stated_args(Checkpoint const& checkpoint, MapLibrary const& library);

/// Whether stated_args() are made of settings.
bool from_settings(Checkpoint const& checkpoint);

/// An Error of kind source where a config.json made of such args lacks a member that its family
/// needs: one whose entry in [config] is absent, and does not provide for that with `??` or `if`;
/// or where a member is a text, and a number by [defaults].
void check_settings(Checkpoint const& checkpoint, MapFile const& family, Model const& described,
                    MapLibrary const& library);

/// Advice for a checkpoint that states no model, as the end of a sentence: "Set source.config to
/// the config.json of the same model (args.json: model = Qwen/Qwen3-4B)".
std::string way_to_a_config(Checkpoint const& checkpoint);

}  // namespace reshard
