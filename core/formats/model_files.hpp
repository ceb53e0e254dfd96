#pragma once

#include <filesystem>
#include <optional>

#include "core/formats/checkpoint.hpp"
#include "core/formats/huggingface/folder.hpp"

namespace reshard {

/// The files of a Hugging Face folder next to weights in HDF5 or DCP; nullopt without a
/// config.json. Files that may belong to others are left out.
std::optional<huggingface::Folder> model_files_beside(std::filesystem::path const& path);

/// The folder `huggingface` of a checkpoint or of the root of its iterations.
std::optional<huggingface::Folder> carried_in(std::filesystem::path const& folder,
                                              std::filesystem::path const& root);

/// The files next to a container, with the config.json inside it, which precedes the one next to
/// it. `place` is the container: a file or a folder.
std::optional<huggingface::Folder> with_config_inside(std::filesystem::path const& place,
                                                      Json const& config, std::string text);

/// The model files of a path: of a folder, config.json and its other files; of a file named
/// config.json, those that may belong to it; of another file, only that file.
huggingface::Folder described_by(std::filesystem::path const& path);

/// The tokenizer of transformers in the folder `tokenizer` of a save of Megatron-Bridge; nullopt if
/// there is none.
std::optional<huggingface::Folder> tokenizer_of(Checkpoint const& source);

/// The Hugging Face files of a source: those next to its weights, the folder `huggingface` in it or
/// next to its iterations; of an HDF5 container with the config.json inside it, which precedes the
/// one next to it. `source_config` names others; if it has only a config.json, the other files stay
/// the source's own. nullopt if there are none.
std::optional<huggingface::Folder> files_of(Checkpoint const& source,
                                            std::filesystem::path const& source_config = {});

}  // namespace reshard
