#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reshard::deepspeed {

// Names of DeepSpeed's files. Source: DeepSpeed 0.19.8, runtime/engine.py (_get_ckpt_name,
// _get_rank_zero_ckpt_name) and checkpoint/ds_to_universal.py.

inline constexpr std::string_view latest_name = "latest";
inline constexpr std::string_view latest_universal_name = "latest_universal";
inline constexpr std::string_view universal_folder_name = "zero";
inline constexpr std::string_view universal_settings_name = "optimizer_state.pt";
inline constexpr std::string_view model_states_name = "mp_rank_00_model_states.pt";
/// The model states of the first rank in stage 3.
inline constexpr std::string_view split_model_states_name =
    "zero_pp_rank_0_mp_rank_00_model_states.pt";

/// "[bf16_]zero_pp_rank_R_mp_rank_MM_optim_states.pt", "mp_rank_MM_model_states.pt".
struct RankName {
  std::optional<int> rank;  ///< data parallel; nullopt without "zero_pp_rank_"
  int model = 0;            ///< model parallel
  bool optimizer = false;
  friend bool operator==(RankName const&, RankName const&) = default;
};
std::optional<RankName> parse_rank_name(std::string_view name);

/// A checkpoint of DeepSpeed found on disk: names only, no file was opened but `latest`.
struct Folder {
  std::filesystem::path root;    ///< as the user named it; may contain `latest` and tagged folders
  std::filesystem::path folder;  ///< the folder of the files
  bool universal = false;        ///< written by ds_to_universal: one folder for each parameter
  bool split = false;            ///< stage 3: every rank has a file of model states
  std::vector<std::string> model_files;      ///< by rank; one unless `split`
  std::vector<std::string> optimizer_files;  ///< by rank; empty for a universal checkpoint
  /// Of a universal checkpoint: folders below zero/, sorted, and the files in each, sorted.
  struct Parameter {
    std::string name;
    std::vector<std::string> files;
  };
  std::vector<Parameter> parameters;
};

/// Whether the names in `path` are those of DeepSpeed. Throws the errors of listing a folder.
bool looks_like_deepspeed(std::filesystem::path const& path);

/// Finds the checkpoint in `path`: a root with `latest` or `latest_universal`, or a folder of one
/// save. Errors of kind source: no `latest`, one that names a missing folder, missing files of
/// ranks, files of tensor or pipeline parallelism, of pipeline layers or of experts.
Folder open_folder(std::filesystem::path const& path);

}  // namespace reshard::deepspeed
