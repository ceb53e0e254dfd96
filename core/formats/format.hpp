#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/formats/checkpoint.hpp"
#include "core/formats/format_id.hpp"
#include "core/formats/headers/header_exchange.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/megatron/headers/classify.hpp"
#include "core/formats/run/run_record.hpp"
#include "core/formats/run/state_inventory.hpp"
#include "core/formats/stored_view.hpp"
#include "core/formats/targets/target_job.hpp"

namespace reshard {

/// The user's choices for opening a checkpoint.
struct OpenChoice {
  megatron::UserSizes sizes;     ///< of mp_rank folders
  bool names_alone = false;      ///< keys are kept verbatim: names of no program are interpreted in
                                 ///< them
  bool without_heads = false;    ///< payloads are not located
  bool rank_states = false;      ///< optimizer state in files of single ranks is requested, and the
                                 ///< optimizer settings of programs other than Megatron
  bool compare_files = true;     ///< files of ranks are checked for copies of each other
  bool by_headers = false;       ///< of a Hugging Face folder: its index is not read
  bool torchao_objects = false;  ///< quantised tensors of torchao in DCP are objects; else refused
  std::string prefix;            ///< of the weights' keys, if the user names one
};

/// The report of `inspect`: as JSON, as text, and the faults of the checkpoint.
struct Inspection {
  Json json;            ///< with "mismatches", and "notes" if a format has any
  std::string text;     ///< without mismatches and notes, whose lines inspect() adds
  std::string summary;  ///< the text without details; "" if it has none
  std::vector<std::string> mismatches;  ///< reasons for which the checkpoint is not sound
  std::vector<std::string> notes;
  std::vector<std::string> details;  ///< further notes, which a summary leaves out
  bool sound = true;
  std::filesystem::path folder;  ///< the folder of the weights
  Json args;                     ///< Megatron's, as stored; null for none
};

/// The properties of a format's targets, for planning and checks.
struct TargetTraits {
  NameOwner names = NameOwner::family;  ///< the owner of the names that a map gives its tensors
  Storage storage = Storage::whole;     ///< distribution over files
  bool written = true;                  ///< else the format is only for sources
  bool mapped = true;                   ///< a map can give them; else names are always kept
  bool any_names = false;      ///< any names are possible; else only those that it has as a source
  bool keeps_own = false;      ///< names of a source of the same format are kept
  bool objects = false;        ///< objects are possible
  bool carries_state = false;  ///< optimizer state of a source of this format can go into targets
                               ///< with `rank_states`
  bool rank_states = false;    ///< optimizer state in slots is possible for any source
  bool masters_alone = false;  ///< with optimizer state its weights are the F32 masters
  bool needs_masters = false;  ///< beside its weights are F32 masters, also of weights alone
  bool checksums = false;      ///< it may have an integrity.json
  bool published = false;      ///< its files are compared with published ones, byte for byte: they
                               ///< are laid out for clones only on request
};

/// The words for a format in sentences.
struct FormatWords {
  std::string_view help;  ///< after its name: "safetensors"
  std::string_view sign;  ///< of a folder, with its program: "*.safetensors (Hugging Face)"; one
                          ///< for a family
  /// Patterns of names that a damaged or unfinished checkpoint may have left in a folder; those of
  /// folders have a trailing '/'.
  std::vector<std::string_view> remains = {};
  /// Patterns of further names that belong to a save, even next to config.json.
  std::vector<std::string_view> own = {};
};

/// One kind of checkpoint on disk. One constant object for each.
class Format {
 public:
  virtual ~Format() = default;

  virtual FormatId id() const = 0;
  /// The word in job files and reports.
  std::string_view name() const { return reshard::name(id()); }
  virtual FormatWords words() const = 0;
  /// The family: its formats are recognised by the same signs, and distinguished when opened.
  virtual std::string_view family() const { return name(); }
  /// Whether another format has precedence: next to its files, files of this one belong to another
  /// program.
  virtual bool yields() const { return false; }
  /// The map of names alone that gives every checkpoint of this format its stored names; "": none.
  virtual std::string_view names_map() const { return ""; }

  /// Whether the path is such a checkpoint, complete or not, by the names in it. Throws the errors
  /// of listing a folder.
  virtual bool probe(std::filesystem::path const& path) const = 0;
  /// The format itself, or the one shown by the beginnings of the files.
  virtual Format const& refined(std::filesystem::path const& /*path*/) const { return *this; }
  /// Signs of an incomplete save, by names only, as the end of a sentence: "has no .metadata, which
  /// is written last"; "" for none.
  virtual std::string why_incomplete(std::filesystem::path const& /*path*/) const { return {}; }

  /// Reads every header, each rank a share. Collective. Errors are of kind source (damage, an
  /// unknown form), the same on every rank.
  virtual Checkpoint open(std::filesystem::path const& path, OpenChoice const& choice,
                          HeaderExchange const& exchange) const = 0;
  /// The description of a checkpoint, with the reason for each conclusion; reads headers only.
  /// Damage is reported, not thrown, if the rest can still be reported.
  virtual Inspection describe(std::filesystem::path const& path,
                              megatron::UserSizes const& sizes) const = 0;

  /// The stored tensors, sorted by content. `prefix` is cut off; "": the usual one is detected.
  virtual StoredView view(Checkpoint const& checkpoint, std::string const& prefix) const;
  /// The state of the run. `view` is the result of view().
  virtual StateInventory inventory(Checkpoint const& checkpoint, StoredView const& view) const;
  /// The record of the run in the files; nullopt if there is none. Reads a file.
  virtual std::optional<RunRecord> run_record(Checkpoint const& checkpoint) const;
  /// Adds the settings of optimizers that are separate objects to that record, in a job that keeps
  /// optimizer state. Reads files. Errors of kind source: damage.
  virtual void add_optimizer_settings(Checkpoint const& /*checkpoint*/,
                                      RunRecord& /*record*/) const {}
  /// Values that are not objects of a file, with their names in a target that keeps names, as bytes
  /// of torch.save. Errors of kind source: values that are not plain data.
  virtual std::vector<std::pair<std::string, std::string>> made_objects(
      Checkpoint const& /*checkpoint*/) const {
    return {};
  }
  /// The properties of targets. A format that does not override this is only for sources and has no
  /// layout functions.
  virtual TargetTraits target() const { return {.written = false}; }
  /// The files, texts and catalogue of a target whose names come from a map. Pre: the draft's
  /// catalogue has room for every logical tensor. Errors of kind usage (requests that the format
  /// cannot fulfil) and source (state that it cannot contain).
  virtual void lay_out(MappedTarget const& job, TargetDraft& draft) const;
  /// As lay_out(), for a target that keeps the source's names.
  virtual void lay_out_named(NamedTarget const& job, TargetDraft& draft) const;

  /// config.json of the model and the files that are copied with it; nullopt if there is none.
  virtual std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const = 0;
};

/// One object for each word of job files but "auto", in the order in which formats are asked.
std::span<Format const* const> all_formats();
Format const& format_of(FormatId id);

/// The possible formats of `path` by the names in it, one of each family; empty: no checkpoint.
std::vector<Format const*> recognise(std::filesystem::path const& path);

/// The format of `path`, for all commands. An Error of kind source if it cannot be a checkpoint
/// (missing, a file of another kind, without weights, another program's), or if it may be several
/// and `wanted` is automatic.
Format const& choose_format(std::filesystem::path const& path,
                            FormatId wanted = FormatId::automatic);

/// The Errors of choose_format() for a path that cannot be a checkpoint.
void check_checkpoint_folder(std::filesystem::path const& path);

/// The folder of a file that is to be written, or one of the two above it, when that is a
/// checkpoint. HDF5 files make a folder one only together with a manifest of ours, as a single file
/// may be in any folder. `file` is absolute and normal. A folder that cannot be listed is not one.
std::optional<std::filesystem::path> enclosing_checkpoint(std::filesystem::path const& file);

/// Opens a checkpoint of format `wanted`, or of the detected one. An Error of kind source if the
/// files are of another format than `wanted`.
Checkpoint open_checkpoint(std::filesystem::path const& path, FormatId wanted, OpenChoice choice,
                           HeaderExchange const& exchange);

/// Megatron's args of a checkpoint: those of its headers, else those of its run record; null for
/// none.
Json args_of(Checkpoint const& checkpoint);

/// The view without a prefix.
inline StoredView view_of(Checkpoint const& checkpoint) {
  return checkpoint.format->view(checkpoint, "");
}

}  // namespace reshard
