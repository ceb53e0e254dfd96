#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/containers/tracker.hpp"

namespace reshard {

// The folders with the saves of a training run: iter_0000010, step-10, global_step10,
// checkpoint-10, release.

/// The folders of a save of accelerate (and of the Trainer of transformers) that shards its state:
/// DCP of weights, and of optimizer state, where there is some. The number is that of the model.
inline constexpr std::string_view accelerate_weights = "pytorch_model_fsdp_0";
inline constexpr std::string_view accelerate_states = "optimizer_0";

/// The step that a folder's name ends in; nothing for a name without one.
std::optional<SaveStep> step_of_folder(std::string_view name);

/// Whether the name is one that programs give to what they have not finished: hidden, "tmp-…",
/// "….tmp", "….part".
bool is_unfinished_name(std::string_view name);

/// A save of a run, by names alone.
struct ListedSave {
  std::string name;
  SaveStep step;
  std::string lacks;  ///< "has no .metadata, which is written last"; "" where names show no lack,
                      ///< which does not mean that it is complete
};

/// The saves in a folder that have files of Megatron's formats or of PyTorch's distributed ones, by
/// step.
std::vector<ListedSave> saves_of_run(std::filesystem::path const& root);

/// "iter_0000020 (mp_rank_01 has no model_optim_rng.pt), iter_0000010"; "none" for an empty list.
std::string listed_saves(std::vector<ListedSave> const& saves);

/// The save in `root` that contains `folder`; "" if `folder` is `root`, or not in a step of it.
std::string save_below(std::filesystem::path const& root, std::filesystem::path const& folder);

/// A sentence about saves in `root` that are newer than the one of `folder`: the save that is used,
/// the file that names it, the newer saves and what is missing in them. "" if there are none.
std::string newer_saves_note(std::filesystem::path const& root,
                             std::filesystem::path const& folder);

}  // namespace reshard
