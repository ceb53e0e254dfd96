#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/tables/id_table.hpp"
#include "core/base/text/json.hpp"
#include "core/base/text/shared_text.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/huggingface/file_metadata.hpp"

namespace reshard::huggingface {

inline constexpr std::string_view index_name = "model.safetensors.index.json";
inline constexpr std::string_view single_file_name = "model.safetensors";
inline constexpr std::string_view config_name = "config.json";
/// Mistral's own files: what config.json and model.safetensors are to Hugging Face.
inline constexpr std::string_view params_name = "params.json";
inline constexpr std::string_view consolidated_stem = "consolidated";
inline constexpr std::string_view adapter_file_name = "adapter_model.safetensors";
inline constexpr std::string_view adapter_index_name = "adapter_model.safetensors.index.json";
inline constexpr std::string_view adapter_config_name = "adapter_config.json";
/// The folder of a checkpoint of another format in which a model's config.json and the files beside
/// it travel.
inline constexpr std::string_view carried_name = "huggingface";

/// The longest index we read: a hundred times the largest seen.
inline constexpr std::uint64_t largest_index_bytes = 512'000'000;
/// The longest config.json we read.
inline constexpr std::uint64_t largest_config_bytes = 16'000'000;
/// A larger file beside the weights is left where it is: the largest tokenizers have a tenth of
/// this.
inline constexpr std::uint64_t largest_sidecar_bytes = 512'000'000;

/// Tensors and the files they are in, in the order of an index.
using WeightMap = std::vector<std::pair<SharedText, SharedText>>;

/// A model folder as Hugging Face tools write it. Only names have been read: no header, no payload.
struct Folder {
  std::filesystem::path path;
  std::vector<std::filesystem::path>
      files;                         ///< the files with weights, relative to path, sorted by name
  bool indexed = false;              ///< there is an index
  WeightMap weight_map;              ///< of the index, where it is wanted
  std::vector<std::string> further;  ///< names of tensors that its model has from another folder
  Json index_metadata;               ///< "metadata" of the index; null when it has none
  Json config;  ///< config.json; null when there is none. NaN and Infinity, which Python writes,
                ///< read as null
  std::string config_text;   ///< its bytes, for patched_config_text
  Json adapter;              ///< adapter_config.json of peft; null when there is none
  std::string adapter_text;  ///< its bytes
  /// Of the files with weights; in a reference what metadata_file_name says of those of a source.
  std::vector<FileMetadata> file_metadata;
  std::vector<std::string> unindexed;  ///< files of weights that the index does not name
  std::vector<std::string>
      sidecars;  ///< the files to copy as they are, sorted; config.json is not among them
  std::vector<std::string> warnings;  ///< sentences: files that were left out and why
};

/// Whether the folder holds an index, a *.safetensors file or pytorch_model*.bin. Opens no file.
bool looks_like_folder(std::filesystem::path const& path);

/// Opens a folder, without `file_metadata`: the index decides which files hold weights; without one
/// there must be exactly one *.safetensors file. Rules: docs/formats/huggingface.md, 1 and 2. Every
/// violation is an Error of kind source. `by_headers`: all *.safetensors files hold weights, and
/// the index is not read (rule 2).
Folder open_folder(std::filesystem::path const& path, bool by_headers = false);

/// Whether the folder holds Mistral's own files, weights and params.json. Opens no file.
bool has_consolidated(std::filesystem::path const& path);
/// The same, and no weights under the names of open_folder().
bool has_consolidated_alone(std::filesystem::path const& path);

/// As open_folder(), of Mistral's own files: those that consolidated.safetensors.index.json names,
/// without it the only consolidated*.safetensors. config.json need not be there.
Folder open_consolidated(std::filesystem::path const& path, bool by_headers = false);

/// Opens a folder whose config, sidecars and shard map are wanted, not its weights: they need not
/// be there. No config.json is an Error of kind usage.
Folder open_reference(std::filesystem::path const& path);

/// The files of a folder that are copied as they are, and nothing else of it.
Folder open_sidecars(std::filesystem::path const& path);

/// The carried files of a checkpoint: the first of these folders whose folder `huggingface` has a
/// config.json; nothing when none has.
std::optional<Folder> find_carried(std::vector<std::filesystem::path> const& folders);

/// Why `name` cannot be a weight file of a folder, as the end of a sentence ("has a '/'"); empty
/// when it can.
std::string shard_name_problem(std::string_view name);

/// The weight files of a folder without regard to an index: those of `names`, sorted. An Error of
/// kind source when there are none, or when numbers in them ("-00002-of-00003") show that some are
/// missing.
std::vector<std::filesystem::path> numbered_files(std::filesystem::path const& folder,
                                                  std::vector<std::string> const& names);

/// The index compared with the header of one file.
struct FileCheck {
  std::vector<std::size_t> indexed;  ///< positions in header.tensors: these are the checkpoint's
  std::vector<std::string>
      warnings;  ///< sentences: tensors that the index does not name; they must not be loaded
};

/// Compares headers with the index of a folder. Safe to use from several threads. Borrows the
/// folder.
class IndexCheck {
 public:
  explicit IndexCheck(Folder const& folder);

  /// An Error of kind source when a tensor that the index places in this file is not there, or when
  /// this file holds a tensor that the index places in another. `file` is a position in
  /// folder.files.
  FileCheck check(std::size_t file, safetensors::Header const& header) const;

 private:
  [[noreturn]] void fail_missing(std::size_t file, safetensors::Header const& header) const;

  /// The file that the index names for a tensor; null where it does not list it.
  SharedText const* file_of(SharedText const& tensor) const;

  Folder const& folder_;
  IdTable places_;                       ///< of tensors in folder_.weight_map
  std::vector<SharedText> names_;        ///< of folder_.files
  std::vector<std::size_t> tensors_in_;  ///< of each file, as the index counts
};

/// IndexCheck for a single file.
FileCheck check_against_index(Folder const& folder, std::size_t file,
                              safetensors::Header const& header);

/// Copies one of folder.sidecars into target_folder under the same name and syncs it.
void copy_sidecar(Folder const& folder, std::string const& name,
                  std::filesystem::path const& target_folder);

}  // namespace reshard::huggingface
