#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.hpp"
#include "core/formats/checkpoint.hpp"
#include "core/formats/format_id.hpp"
#include "core/formats/header_exchange.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/megatron/classify.hpp"
#include "core/formats/run_record.hpp"
#include "core/formats/state_inventory.hpp"
#include "core/formats/stored_view.hpp"
#include "core/formats/target_job.hpp"

namespace reshard {

/// What a user says about a checkpoint that its files may not say.
struct OpenChoice {
  megatron::UserSizes sizes;  ///< of mp_rank folders
  bool names_alone = false;   ///< keys mean nothing beyond themselves, whichever program saved them
  bool without_heads = false;  ///< payloads' places are not wanted
  bool rank_states = false;    ///< optimizer state in files of single ranks is wanted, and what
                               ///< programs other than Megatron say of their optimizer
  bool compare_files = true;   ///< files of ranks are checked for copies of each other
  std::string prefix;          ///< of the weights' keys, where the user names one
};

/// What `inspect` says: the document, the same as text, and whether the checkpoint is sound.
struct Inspection {
  Json json;            ///< with "mismatches", and "notes" where a format has any
  std::string text;     ///< without mismatches and notes, whose lines inspect() adds
  std::string summary;  ///< the text without details; "" where it has none
  std::vector<std::string> mismatches;  ///< why the checkpoint is not sound
  std::vector<std::string> notes;
  std::vector<std::string> details;  ///< further notes, which a summary leaves out
  bool sound = true;
  std::filesystem::path folder;  ///< that holds the weights
  Json args;                     ///< Megatron's, as they are stored; null for none
};

/// What a target of a format can be, for those who plan and check it.
struct TargetTraits {
  NameOwner names = NameOwner::family;  ///< which names a map gives its tensors
  Storage storage = Storage::whole;     ///< how they lie in files
  bool written = true;                  ///< else the format is one of sources alone
  bool mapped = true;                   ///< a map can give them; else names are always kept
  bool any_names = false;      ///< it can hold any names; else only those that it has as a source
  bool keeps_own = false;      ///< names of a source of the same format are kept
  bool objects = false;        ///< it can hold objects
  bool carries_state = false;  ///< optimizer state of a source of this format can go into targets
                               ///< with `rank_states`
  bool rank_states = false;    ///< it can hold optimizer state in slots, whatever the source
  bool masters_alone = false;  ///< beside optimizer state its weights are the F32 masters
  bool checksums = false;      ///< it may have an integrity.json
  bool published = false;      ///< its files are compared with published ones, byte for byte: they
                               ///< are laid out for clones on request alone
};

/// What sentences say of a format.
struct FormatWords {
  std::string_view help;  ///< behind its name: "safetensors"
  std::string_view sign;  ///< that a folder has, and whose it is: "*.safetensors (Hugging Face)";
                          ///< one for a family
  /// Patterns of names that a damaged or unfinished checkpoint may have left in a folder; those of
  /// folders have a '/' behind.
  std::vector<std::string_view> remains = {};
  /// Patterns of further names that belong to a save, though they may lie beside config.json.
  std::vector<std::string_view> own = {};
};

/// All that the program knows about one kind of checkpoint on disk. One constant object for each.
class Format {
 public:
  virtual ~Format() = default;

  virtual FormatId id() const = 0;
  /// The word of job files and answers.
  std::string_view name() const { return reshard::name(id()); }
  virtual FormatWords words() const = 0;
  /// Formats of one family look alike from outside, and tell each other apart when they are opened.
  virtual std::string_view family() const { return name(); }
  /// Beside files of another format, files of this one belong to another program.
  virtual bool yields() const { return false; }

  /// Whether the path is such a checkpoint, complete or not, by the names in it. Throws what
  /// listing a folder throws.
  virtual bool probe(std::filesystem::path const& path) const = 0;
  /// The format itself, or the one that its files' beginnings tell.
  virtual Format const& refined(std::filesystem::path const& /*path*/) const { return *this; }
  /// Signs of a save that has not come to its end, by names alone, as the end of a sentence: "has
  /// no .metadata, which is written last"; "" for none.
  virtual std::string why_incomplete(std::filesystem::path const& /*path*/) const { return {}; }

  /// Reads every header: each rank its share. Collective. Errors are of kind source (damage, an
  /// unknown form), the same on every rank.
  virtual Checkpoint open(std::filesystem::path const& path, OpenChoice const& choice,
                          HeaderExchange const& exchange) const = 0;
  /// What it is, with the reason for each conclusion; reads headers only. Damage is reported, not
  /// thrown, where the rest can still be reported.
  virtual Inspection describe(std::filesystem::path const& path,
                              megatron::UserSizes const& sizes) const = 0;

  /// The stored tensors by what they hold. `prefix` is cut off; "": what is usual is found.
  virtual StoredView view(Checkpoint const& checkpoint, std::string const& prefix) const;
  /// State of the run that is there. `view` is that of view().
  virtual StateInventory inventory(Checkpoint const& checkpoint, StoredView const& view) const;
  /// What the files say about their run; nothing when that is nothing. Reads a file.
  virtual std::optional<RunRecord> run_record(Checkpoint const& checkpoint) const;
  /// Adds to that record the settings of optimizers that are objects of their own, of a job that
  /// keeps optimizer state. Reads files. Errors of kind source: damage.
  virtual void add_optimizer_settings(Checkpoint const& /*checkpoint*/,
                                      RunRecord& /*record*/) const {}
  /// Values that no file holds as such, with the names that a target which keeps names gives them,
  /// as torch.save writes them. Errors of kind source: values that are no plain data.
  virtual std::vector<std::pair<std::string, std::string>> made_objects(
      Checkpoint const& /*checkpoint*/) const {
    return {};
  }
  /// What a target of this format can be. A format that does not override this is one of sources
  /// alone, and lays out nothing.
  virtual TargetTraits target() const { return {.written = false}; }
  /// The files, texts and catalogue of a target whose names come from a map. Pre: the draft's
  /// catalogue has room for every logical tensor. Errors of kind usage
  /// (what the format cannot be asked for) and source (state that it cannot hold).
  virtual void lay_out(MappedTarget const& job, TargetDraft& draft) const;
  /// The same of a target that keeps the source's names.
  virtual void lay_out_named(NamedTarget const& job, TargetDraft& draft) const;

  /// config.json of the model and the files that are copied with it; nothing when there is none.
  virtual std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const = 0;
};

/// One object for each word of job files but "auto", in the order in which formats are asked.
std::span<Format const* const> all_formats();
Format const& format_of(FormatId id);

/// All that `path` may be by the names in it, one of each family; empty: no checkpoint.
std::vector<Format const*> recognise(std::filesystem::path const& path);

/// The one that it is: every command asks this. An Error of kind source when it cannot be a
/// checkpoint (not there, a file of another kind, weights missing, another program's), or when it
/// may be several and `wanted` does not say which.
Format const& choose_format(std::filesystem::path const& path,
                            FormatId wanted = FormatId::automatic);

/// The Errors of choose_format() for a path that cannot be a checkpoint.
void check_checkpoint_folder(std::filesystem::path const& path);

/// The folder of a file that is to be written, or one of the two above it, when that is a
/// checkpoint. HDF5 files make a folder one only beside a manifest of ours: a single file may lie
/// in any folder. `file` is absolute and normal. A folder that may not be listed is none.
std::optional<std::filesystem::path> enclosing_checkpoint(std::filesystem::path const& file);

/// Opens what `wanted` says, or what is found. An Error of kind source when the files are of
/// another format than `wanted`.
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
