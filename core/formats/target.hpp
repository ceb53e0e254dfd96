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
#include "core/formats/read_choice.hpp"
#include "core/formats/run_record.hpp"
#include "core/formats/target_options.hpp"
#include "core/mapping/side.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// The properties of a target that every format has.
struct TargetChoice {
  FormatId format = FormatId::megatron;  ///< never automatic
  PipelineSpec pipeline;  ///< ranks, chunks, first/last stage layers or layout string; layer counts
                          ///< are filled in
  Mesh mesh;
  std::filesystem::path
      folder;  ///< absolute, where the target will be; empty where none is written
  TargetDType dtype = TargetDType::keep;
  std::optional<DType> cast;  ///< what `dtype` means for this source, which the plan fills in;
                              ///< nothing: dtypes stay
  DataLayout data_layout = DataLayout::usual;
  std::string tool_version;  ///< for the provenance that a target holds
};

/// The request for a plan, independent of the job file's form.
struct PlanRequest {
  ReadChoice read;
  TargetChoice target;
  TargetOptions options;  ///< of the target's format, and of others, which nothing reads
};

/// A file of the target with tensors: its byte layout is complete before any byte moves.
struct TargetFile {
  std::filesystem::path path;  ///< relative to the target
  std::uint64_t size_bytes = 0;
  MeshPlace at = {};  ///< of TargetDraft::file_mesh; empty where files have no places
  std::shared_ptr<FileFrame const> frame;  ///< what it has around its tensors; borrows nothing
};

/// A small file whose bytes are known now. `mark`: written last, it makes the checkpoint count.
struct TextFile {
  std::filesystem::path path;
  std::string text;
  bool mark = false;
  std::function<std::string()>
      make;  ///< of large files, or many alike: makes `text` when written; borrows nothing
};

/// A file or folder that is copied along as it is.
struct SideCopy {
  std::filesystem::path from;
  std::filesystem::path to;  ///< relative to the target
};

/// What a format decides about a target: the same on every rank.
struct TargetDraft {
  DataLayout data_layout = DataLayout::usual;  ///< as requested
  Catalog target;
  std::vector<TargetFile> files;
  Mesh file_mesh;      ///< along which files stand; without axes where they do not
  std::string layout;  ///< that mesh in words, with what no file has a number for
  std::vector<SharedShape> shapes;  ///< of a Hugging Face target's tensors, by blob
  std::vector<TextFile> texts;
  std::vector<OpaqueCopy> opaque;  ///< what the plan copies besides tensors
  std::vector<int> target_adds;    ///< what stored values of the target have over logical ones, by
                                   ///< logical tensor; empty: nothing
  std::string master_slot;         ///< what readers of the target call the slot of master weights;
                                   ///< "": as the source does
  std::vector<TensorId> own_masters;  ///< F32 weights that the target has in that slot, too
  std::vector<std::string> frozen;    ///< parameters without optimizer state, which a reader of the
                                      ///< target has to be told (model.frozen)
  std::optional<huggingface::Folder> reference;  ///< whose sidecars are copied
  std::filesystem::path
      reference_to;  ///< and into which folder of the target; "" for the target itself
  std::vector<SideCopy> side_copies;
  std::vector<std::string> warnings;
  /// What Megatron's args of the target will say, and how its names follow from them: the plan
  /// proves that both agree. Nothing for targets without args.
  struct Stated {
    Json args;
    SideOptions options;
  };
  std::optional<Stated> stated;
};

}  // namespace reshard
