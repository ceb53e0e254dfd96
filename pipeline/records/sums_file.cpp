#include "pipeline/records/sums_file.hpp"

#include <utility>

#include "core/base/files/file.hpp"
#include "core/base/hash/sha256.hpp"
#include "core/formats/manifest/file_records.hpp"

namespace reshard {

bool takes_sums(JobSpec const& spec) {
  return spec.run.verify == VerifyChoice::written && spec.target.sha256sums != SumsChoice::never;
}

std::vector<FileSum> sums_of(JobPlan const& plan, std::span<FileHashes const> found) {
  std::vector<FileSum> sums;
  for (std::size_t f = 0; f < plan.files.size(); ++f)
    sums.push_back({plan.files[f].path.generic_string(), hex_of(found[f].sha256)});
  return sums;
}

FileRecord write_sums(std::vector<FileSum> sums, std::string_view manifest,
                      std::filesystem::path const& staging) {
  sums.push_back({std::string(manifest_name), sha256_of_text(manifest)});
  std::string const text = sums_text(std::move(sums));
  write_text_file(staging / sums_name, text);
  return record_of_text(std::string(sums_name), text);
}

}  // namespace reshard
