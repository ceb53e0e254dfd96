#include "stages/read/open_source.hpp"

#include <algorithm>

#include "core/base/file.hpp"
#include "core/base/integers.hpp"
#include "core/formats/megatron/report.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Appends a length and bytes; the inverse of take_block.
void put_block(std::string& out, std::string_view bytes) {
  std::uint64_t const size = bytes.size();
  out.append(reinterpret_cast<char const*>(&size), sizeof size);
  out.append(bytes);
}

std::string_view take_block(std::string_view& in) {
  std::uint64_t size = 0;
  RESHARD_EXPECT(in.size() >= sizeof size);
  std::copy_n(in.data(), sizeof size, reinterpret_cast<char*>(&size));
  in.remove_prefix(sizeof size);
  RESHARD_EXPECT(in.size() >= size);
  std::string_view const block = in.substr(0, size);
  in.remove_prefix(size);
  return block;
}

/// Reads the header of every file, each rank those that are its turn, and gives all of them to all ranks.
std::vector<std::string> shared_headers(std::vector<fs::path> const& files, Comm const& comm, std::function<std::string(File const&)> const& read) {
  std::string mine;
  together(comm, [&] {
    for (std::size_t f = static_cast<std::size_t>(comm.rank()); f < files.size(); f += static_cast<std::size_t>(comm.size()))
      put_block(mine, read(File::open_for_reading(files[f])));
  });
  std::vector<std::string> const all = comm.all_gather(mine);
  std::vector<std::string_view> left(all.begin(), all.end());
  std::vector<std::string> result;
  for (std::size_t f = 0; f < files.size(); ++f) result.emplace_back(take_block(left[f % all.size()]));
  return result;
}

/// The first bytes of a safetensors file up to its data, after the size of the whole file.
std::string safetensors_head(File const& file) {
  safetensors::Header const header = safetensors::read_header(file);  // checked here, so that a fault is found once and early
  std::uint64_t const size = file.size_bytes();
  std::string bytes(sizeof size + header.header_bytes, '\0');
  std::copy_n(reinterpret_cast<char const*>(&size), sizeof size, bytes.data());
  file.read_at(0, std::as_writable_bytes(std::span(bytes).subspan(sizeof size)));
  return bytes;
}

SourceCheckpoint open_huggingface(fs::path const& path, Comm const& comm) {
  SourceCheckpoint source;
  HuggingFaceCheckpoint checkpoint;
  together(comm, [&] { checkpoint.folder = huggingface::open_folder(path); });
  for (fs::path const& file : checkpoint.folder.files) source.files.push_back(checkpoint.folder.path / file);
  std::vector<std::string> const heads = shared_headers(source.files, comm, safetensors_head);
  source.warnings = checkpoint.folder.warnings;
  together(comm, [&] {
    huggingface::IndexCheck const index(checkpoint.folder);
    for (std::size_t f = 0; f < heads.size(); ++f) {
      std::uint64_t size = 0;
      std::copy_n(heads[f].data(), sizeof size, reinterpret_cast<char*>(&size));
      auto const bytes = std::as_bytes(std::span(heads[f])).subspan(sizeof size);
      checkpoint.headers.push_back(safetensors::parse_header(bytes, size, source.files[f].string()));
      huggingface::FileCheck check = index.check(f, checkpoint.headers.back());
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
  together(comm, [&] { checkpoint.directory = megatron::open_directory(path); });
  for (megatron::Shard const& shard : checkpoint.directory.shards) {
    if (shard.model_file.empty())
      fail(ErrorKind::source, "{}: holds no {}, so the weights of this rank are missing. The save was cut short, or the file was moved: restore it.",
           shard.path.string(), megatron::model_file_name);
    source.files.push_back(shard.model_path());
  }
  for (std::string const& packed : shared_headers(source.files, comm, [](File const& file) { return pack(megatron::read_shard_header(file)); }))
    checkpoint.headers.push_back(megatron::unpack(packed));
  std::vector<megatron::ShardHeader const*> headers;
  for (auto const& header : checkpoint.headers) headers.push_back(&header);
  checkpoint.classification = megatron::classify(megatron::shard_facts(checkpoint.directory, headers), user);
  megatron::require_readable(checkpoint.classification, checkpoint.directory.iteration_dir.string());
  source.warnings = checkpoint.directory.notes;
  for (std::string const& note : checkpoint.classification.notes)
    if (!note.starts_with("expert_parallel_size was not given")) source.warnings.push_back(note);  // a job has no such key to give
  source.megatron = std::move(checkpoint);
  return source;
}

}  // namespace

void check_checkpoint_folder(fs::path const& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) fail(ErrorKind::source, "{}: does not exist. Check the path (source.path of a job file).", path.string());
  if (!fs::is_directory(path, ignored)) fail(ErrorKind::source, "{}: is not a directory. Name the checkpoint's folder.", path.string());
  if (fs::exists(path / huggingface::config_name, ignored) && !huggingface::looks_like_folder(path) && !megatron::looks_like_megatron(path))
    fail(ErrorKind::source, "{}: holds a {} but no weights, neither *.safetensors nor {}. Name the folder with the weights, or download them.",
         path.string(), huggingface::config_name, huggingface::index_name);
}

SourceCheckpoint open_source(fs::path const& path, SourceFormat format, megatron::UserSizes const& user, Comm const& comm) {
  std::int64_t kind = 0;  // 1 Megatron, 2 Hugging Face
  together(comm, [&] {
    check_checkpoint_folder(path);
    if (format == SourceFormat::found) {
      kind = huggingface::looks_like_folder(path) ? 2 : 1;
      if (kind == 2 && megatron::looks_like_megatron(path))
        fail(ErrorKind::source, "{}: holds Megatron ranks and Hugging Face weights side by side. Say which with source.format.", path.string());
    } else {
      kind = format == SourceFormat::huggingface ? 2 : 1;
    }
  });
  return kind == 2 ? open_huggingface(path, comm) : open_megatron(path, user, comm);
}

}  // namespace reshard
