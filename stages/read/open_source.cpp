#include "stages/read/open_source.hpp"

#include <algorithm>

#include "core/base/file.hpp"
#include "core/base/integers.hpp"
#include "core/base/sight.hpp"
#include "core/formats/megatron/report.hpp"
#include "core/transport/shared_sight.hpp"
#include "stages/read/foreign.hpp"
#include "stages/read/open_dcp.hpp"
#include "stages/read/open_hdf5.hpp"
#include "stages/read/shared_headers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

SourceCheckpoint open_huggingface(fs::path const& path, Comm const& comm) {
  SourceCheckpoint source;
  HuggingFaceCheckpoint checkpoint;
  together_seeing(comm, [&] { checkpoint.folder = huggingface::open_folder(path); });
  for (fs::path const& file : checkpoint.folder.files) source.files.push_back(checkpoint.folder.path / file);
  checkpoint.headers = shared_safetensors_headers(source, comm);
  source.warnings = checkpoint.folder.warnings;
  together(comm, [&] {
    huggingface::IndexCheck const index(checkpoint.folder);
    for (std::size_t f = 0; f < checkpoint.headers.size(); ++f) {
      huggingface::FileCheck check = index.check(f, checkpoint.headers[f]);
      checkpoint.indexed.push_back(std::move(check.indexed));
      source.warnings.insert(source.warnings.end(), check.warnings.begin(), check.warnings.end());
    }
  });
  source.huggingface = std::move(checkpoint);
  return source;
}

SourceCheckpoint open_megatron(fs::path const& path, megatron::UserSizes const& user, Comm const& comm) {
  SourceCheckpoint source;
  MegatronCheckpoint checkpoint;
  together_seeing(comm, [&] {
    checkpoint.directory = megatron::open_directory(path);
    for (megatron::Shard const& shard : checkpoint.directory.shards) {
      if (shard.model_file.empty())
        fail(ErrorKind::source,
             "{}: holds no {}, so the weights of this rank are missing. The save was cut short, or the file was moved: restore it.",
             shard.path.string(), megatron::model_file_name);
      source.files.push_back(shard.model_path());
    }
  });
  auto const packed_headers = shared_headers(source, comm, [](File const& file) { return pack(megatron::read_shard_header(file)); });
  together(comm, [&] {
    for (std::string const& packed : packed_headers) checkpoint.headers.push_back(megatron::unpack(packed));
    std::vector<megatron::ShardHeader const*> headers;
    for (auto const& header : checkpoint.headers) {
      for (StorageRecord const& record : header.records)
        source.records.push_back({narrow<std::uint32_t>(headers.size()), record.offset_bytes, record.size_bytes, 0, header.file_bytes, record.crc32});
      headers.push_back(&header);
    }
    checkpoint.classification = megatron::classify(megatron::shard_facts(checkpoint.directory, headers), user);
    megatron::require_readable(checkpoint.classification, checkpoint.directory.iteration_dir.string());
  });
  source.warnings = checkpoint.directory.notes;
  for (std::string const& note : checkpoint.classification.notes)
    if (!note.starts_with("expert_parallel_size was not given")) source.warnings.push_back(note);  // a job has no such key to give
  source.megatron = std::move(checkpoint);
  return source;
}

/// What is in a folder, sorted; folders with a '/' behind.
std::vector<std::string> marked_names(fs::path const& path) {
  std::vector<std::string> names = seen_names("marked names of", path, [&] {
    std::vector<std::string> found;
    std::error_code ended;
    for (fs::directory_iterator it(path, ended); !ended && it != fs::directory_iterator(); it.increment(ended)) {
      std::error_code unknown;
      found.push_back(it->path().filename().string() + (it->is_directory(unknown) ? "/" : ""));
    }
    if (ended) fail(ErrorKind::source, "{}: cannot be listed: {}. Check the path and its permissions.", path.string(), ended.message());
    return found;
  });
  std::ranges::sort(names);
  return names;
}

}  // namespace

void check_checkpoint_folder(fs::path const& path) {
  if (!sees_anything(path)) fail(ErrorKind::source, "{}: does not exist. Check the path (source.path of a job file).", path.string());
  if (sees_file(path) && looks_like_hdf5_checkpoint(path)) return;
  if (!sees_folder(path)) fail(ErrorKind::source, "{}: {}", path.string(), foreign_file(path));
  if (huggingface::looks_like_folder(path) || megatron::looks_like_megatron(path) || dcp::looks_like_dcp(path) || looks_like_hdf5_checkpoint(path))
    return;
  if (std::string const answer = foreign_folder(path, marked_names(path)); !answer.empty()) fail(ErrorKind::source, "{}: {}", path.string(), answer);
  if (sees_anything(path / huggingface::config_name))
    fail(ErrorKind::source, "{}: holds a {} but no weights, neither *.safetensors nor {}. Name the folder with the weights, or download them.",
         path.string(), huggingface::config_name, huggingface::index_name);
}

std::string_view format_of(SourceCheckpoint const& source) {
  if (source.megatron) return "megatron";
  if (source.huggingface) return "huggingface";
  if (source.logical || source.dcp->container == TensorContainer::hdf5) return "hdf5";
  switch (source.dcp->flavour) {
    case dcp::Flavour::plain: return "dcp";
    case dcp::Flavour::torch_dist: return "torch_dist";
    case dcp::Flavour::fsdp_dtensor: break;
  }
  return "fsdp_dtensor";
}

SourceCheckpoint open_source(fs::path const& path, SourceFormat format, megatron::UserSizes const& user, Comm const& comm) {
  enum Kind : std::int64_t { megatron_directory, huggingface_folder, dcp_folder, boxed_safetensors, hdf5_files_of };
  Kind kind = megatron_directory;
  together_seeing(comm, [&] {
    check_checkpoint_folder(path);
    bool const dcp = format == SourceFormat::dcp || (format == SourceFormat::found && dcp::looks_like_dcp(path));
    bool const weights = format == SourceFormat::huggingface || (format == SourceFormat::found && huggingface::looks_like_folder(path));
    bool const megatron = format == SourceFormat::megatron || (format == SourceFormat::found && megatron::looks_like_megatron(path));
    if (dcp + weights + megatron > 1)
      fail(ErrorKind::source, "{}: holds several of Megatron ranks, Hugging Face weights and a {} side by side. Say which with source.format.",
           path.string(), dcp::metadata_name);
    // Beside weights of another format a file such as tf_model.h5 is one of another program.
    bool const other = dcp || weights || megatron;
    bool const hdf5 = format == SourceFormat::hdf5 || (format == SourceFormat::found && !other && looks_like_hdf5_checkpoint(path));
    if (hdf5)
      kind = hdf5_files_of;
    else if (dcp)
      kind = dcp_folder;
    else if (weights)
      kind = huggingface_folder;
    if ((weights || (dcp && !dcp::looks_like_dcp(path))) && looks_like_boxed_safetensors(path)) kind = boxed_safetensors;
  });
  switch (kind) {
    case megatron_directory: return open_megatron(path, user, comm);
    case huggingface_folder: return open_huggingface(path, comm);
    case dcp_folder: return open_dcp(path, comm);
    case hdf5_files_of: return open_hdf5(path, comm);
    case boxed_safetensors: break;
  }
  return open_boxed_safetensors(path, comm);
}

}  // namespace reshard
