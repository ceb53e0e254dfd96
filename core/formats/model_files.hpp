#pragma once

#include <filesystem>
#include <optional>

#include "core/formats/checkpoint.hpp"
#include "core/formats/huggingface/folder.hpp"

namespace reshard {

/// The files of a Hugging Face folder that lie beside weights in HDF5 or DCP, where there is a
/// config.json; files that may belong to others are left out.
std::optional<huggingface::Folder> model_files_beside(std::filesystem::path const& path);

/// The folder `huggingface` of a checkpoint or of the root that its iterations lie in.
std::optional<huggingface::Folder> carried_in(std::filesystem::path const& folder,
                                              std::filesystem::path const& root);

/// What lies beside a container, with the config.json inside it, which counts before the one
/// beside. `place` is the container: a file or a folder.
std::optional<huggingface::Folder> with_config_inside(std::filesystem::path const& place,
                                                      Json const& config, std::string text);

/// config.json of a folder with the files beside it; of a file named config.json, those that may
/// belong to it; or a file of another name alone.
huggingface::Folder described_by(std::filesystem::path const& path);

/// The tokenizer of transformers in the folder `tokenizer` of a save of Megatron-Bridge; nothing
/// when there is none.
std::optional<huggingface::Folder> tokenizer_of(Checkpoint const& source);

/// The Hugging Face files of a source: what lies beside its weights, the folder `huggingface` in it
/// or beside its iterations; of an HDF5 container with the config.json inside it, which counts
/// before the one beside. `source_config` names others; where it has a config.json alone, the other
/// files stay the source's own. Nothing when there are none.
std::optional<huggingface::Folder> files_of(Checkpoint const& source,
                                            std::filesystem::path const& source_config = {});

}  // namespace reshard
