#include "stages/read/open_source.hpp"

#include "core/base/file.hpp"
#include "core/base/integers.hpp"
#include "core/formats/megatron/report.hpp"
#include "core/transport/shared_sight.hpp"
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
  for (fs::path const& file : checkpoint.folder.files)
    source.files.push_back(checkpoint.folder.path / file);
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

SourceCheckpoint open_megatron(fs::path const& path, megatron::UserSizes const& user,
                               Comm const& comm) {
  SourceCheckpoint source;
  MegatronCheckpoint checkpoint;
  together_seeing(comm, [&] {
    checkpoint.directory = megatron::open_directory(path);
    for (megatron::Shard const& shard : checkpoint.directory.shards) {
      if (shard.model_file.empty())
        fail(
            ErrorKind::source,
            "{}: holds no {}, so the weights of this rank are missing. The save was cut short, or the file was moved: restore it.",
            shard.path.string(), megatron::model_file_name);
      source.files.push_back(shard.model_path());
    }
  });
  auto const packed_headers = shared_headers(
      source, comm, [](File const& file) { return pack(megatron::read_shard_header(file)); });
  together(comm, [&] {
    for (std::string const& packed : packed_headers)
      checkpoint.headers.push_back(megatron::unpack(packed));
    std::vector<megatron::ShardHeader const*> headers;
    for (auto const& header : checkpoint.headers) {
      for (StorageRecord const& record : header.records)
        source.records.push_back({narrow<std::uint32_t>(headers.size()), record.offset_bytes,
                                  record.size_bytes, 0, header.file_bytes, record.crc32});
      headers.push_back(&header);
    }
    checkpoint.classification =
        megatron::classify(megatron::shard_facts(checkpoint.directory, headers), user);
    megatron::require_readable(checkpoint.classification,
                               checkpoint.directory.iteration_dir.string());
  });
  source.warnings = checkpoint.directory.notes;
  for (std::string const& note : checkpoint.classification.notes)
    if (!note.starts_with("expert_parallel_size was not given"))
      source.warnings.push_back(note);  // a job has no such key to give
  source.megatron = std::move(checkpoint);
  return source;
}

}  // namespace

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

SourceCheckpoint open_source(fs::path const& path, SourceFormat format,
                             megatron::UserSizes const& user, Comm const& comm) {
  CheckpointKind kind = CheckpointKind::megatron;
  together_seeing(comm, [&] { kind = kind_of(path, format); });
  switch (kind) {
    case CheckpointKind::megatron: return open_megatron(path, user, comm);
    case CheckpointKind::huggingface: return open_huggingface(path, comm);
    case CheckpointKind::dcp: return open_dcp(path, comm);
    case CheckpointKind::hdf5: return open_hdf5(path, comm);
    case CheckpointKind::boxed_safetensors: break;
  }
  return open_boxed_safetensors(path, comm);
}

}  // namespace reshard
