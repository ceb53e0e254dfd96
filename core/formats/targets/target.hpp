#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/data_layout.hpp"
#include "core/containers/file_frame.hpp"
#include "core/formats/format_id.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/model_changes.hpp"
#include "core/formats/read_choice.hpp"
#include "core/formats/run/run_record.hpp"
#include "core/formats/targets/target_options.hpp"
#include "core/mapping/sides/side.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// The properties of a target that every format has.
struct TargetChoice {
  FormatId format = FormatId::megatron;  ///< never automatic
  PipelineSpec pipeline;  ///< ranks, chunks, first/last stage layers or layout string; layer counts
                          ///< are filled in
  Mesh mesh;
  std::filesystem::path folder;  ///< absolute path of the target; empty if none is written
  TargetDType dtype = TargetDType::keep;
  std::optional<DType> cast;  ///< the meaning of `dtype` for this source, set by the plan; nullopt:
                              ///< dtypes are unchanged
  DataLayout data_layout = DataLayout::usual;
  std::string tool_version;  ///< for the provenance in a target
};

/// The request for a plan, independent of the job file's form.
struct PlanRequest {
  ReadChoice read;
  TargetChoice target;
  TargetOptions options;  ///< of the target's format, and of others, which are not read
  ModelChanges changes;
};

/// A file of the target with tensors: its byte layout is complete before any byte moves.
struct TargetFile {
  std::filesystem::path path;  ///< relative to the target
  std::uint64_t size_bytes = 0;
  MeshPlace at = {};  ///< of TargetDraft::file_mesh; empty if files have no places
  std::shared_ptr<FileFrame const> frame;  ///< the bytes around its tensors; borrows nothing
};

/// A small file with known bytes. `mark`: written last, it makes the checkpoint valid.
struct TextFile {
  std::filesystem::path path;
  std::string text;
  bool mark = false;
  std::function<std::string()> make;  ///< of large files, or of many similar ones: makes `text`
                                      ///< when written; borrows nothing
};

/// A file or folder that is copied along unchanged.
struct SideCopy {
  std::filesystem::path from;
  std::filesystem::path to;  ///< relative to the target
};

/// The constant that a side adds to a logical tensor; a list without it adds nothing.
inline int add_of(std::vector<int> const& adds, TensorId tensor) {
  return index(tensor) < adds.size() ? adds[index(tensor)] : 0;
}

/// A format's decisions about a target: the same on every rank.
struct TargetDraft {
  DataLayout data_layout = DataLayout::usual;  ///< as requested
  Catalog target;
  std::vector<TargetFile> files;
  Mesh file_mesh;                   ///< along which files stand; without axes where they do not
  std::string layout;               ///< that mesh in words, with what no file has a number for
  std::vector<SharedShape> shapes;  ///< of a Hugging Face target's tensors, by blob
  std::vector<TextFile> texts;
  std::vector<OpaqueCopy> opaque;  ///< copies of the plan in addition to tensors
  std::vector<int> target_adds;    ///< constants that the target adds to logical values, by logical
                                   ///< tensor; empty: none
  std::string master_slot;         ///< the name of the slot of master weights in the target; "": as
                                   ///< in the source
  std::vector<TensorId> own_masters;  ///< F32 weights that are in that slot of the target, too
  std::vector<TensorId> unseen;       ///< what no reader of the target finds: masters of weights
                                      ///< alone
  std::vector<std::string> frozen;    ///< parameters without optimizer state, for model.frozen of a
                                      ///< reader of the target
  std::optional<huggingface::Folder> reference;  ///< whose sidecars are copied
  std::filesystem::path
      reference_to;  ///< the folder of the target for these; "" for the target itself
  std::vector<SideCopy> side_copies;
  std::vector<std::string> warnings;
  /// Megatron's args of the target, and the options of its names: the plan proves that both agree.
  /// nullopt for targets without args.
  struct Stated {
    Json args;
    SideOptions options;
  };
  std::optional<Stated> stated;
};

}  // namespace reshard
