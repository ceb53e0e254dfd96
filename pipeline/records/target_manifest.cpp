#include "pipeline/records/target_manifest.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "pipeline/job/job_field.hpp"
#include "pipeline/records/recorded_digests.hpp"
#include "pipeline/records/target_check.hpp"
#include "pipeline/version.hpp"

namespace reshard {
namespace {

/// Sorted by path; none where files were not read back, or not completely.
std::vector<FileRecord> file_records(JobPlan const& plan, TargetContents const& contents) {
  if (!contents.read_back || !are_whole(contents.files)) return {};
  std::vector<FileRecord> records(contents.small_files.begin(), contents.small_files.end());
  for (std::size_t f = 0; f < plan.files.size(); ++f)
    records.push_back({plan.files[f].path.generic_string(), contents.files[f].size_bytes,
                       contents.files[f].xxh3});
  std::sort(records.begin(), records.end(),
            [](FileRecord const& a, FileRecord const& b) { return a.path < b.path; });
  return records;
}

/// Without their digests.
Json file_names(JobPlan const& plan, std::span<FileRecord const> small_files) {
  Json names = Json::array();
  for (FileRecord const& one : small_files) names.push(one.path);
  for (TargetFile const& file : plan.files) names.push(file.path.generic_string());
  return names;
}

/// Gives tensors that the target holds in the bytes of another one its digest: readers see both.
void add_shared(JobPlan const& plan, std::vector<TensorDigest>& tensors) {
  for (auto const& [tensor, first] : plan.copies.same_as) {
    auto const known =
        std::ranges::find(tensors, plan.model->tensor(first).name, &TensorDigest::name);
    RESHARD_EXPECT(known != tensors.end());
    TensorDigest copy = *known;
    copy.name = plan.model->tensor(tensor).name;
    tensors.push_back(std::move(copy));
  }
}

/// Master weights by the names that they have in the target, and those that only the target has.
void name_masters(JobPlan const& plan, std::vector<TensorDigest>& tensors) {
  if (plan.master_slot.empty()) return;
  std::size_t next = 0;
  for (std::size_t t = 0; t < plan.model->tensors().size(); ++t)
    if (is_in_target(plan, t)) tensors[next++].name = recorded_name(plan, t);
  RESHARD_EXPECT(next == tensors.size());
  std::unordered_map<std::string, TensorDigest> own;
  for (TensorId const weight : plan.own_masters)
    own.emplace(plan.model->tensor(weight).name, TensorDigest());
  for (TensorDigest const& tensor : tensors)
    if (auto const found = own.find(tensor.name); found != own.end()) found->second = tensor;
  for (TensorId const weight : plan.own_masters) {
    TensorDigest master = own.at(plan.model->tensor(weight).name);
    RESHARD_EXPECT(!master.name.empty());
    master.name = slot_name(master.name, plan.master_slot);
    master.add = 0;
    tensors.push_back(std::move(master));
  }
}

TensorDigest object_digest(JobPlan const& plan, OpaqueCopy const& copy, std::uint64_t digest) {
  std::string const place =
      fmt::format("{}:{}", plan.target.files[copy.dst_file], copy.dst_offset_bytes);
  return {place, "", {static_cast<Index>(copy.bytes)}, {}, digest, 0};
}

}  // namespace

std::vector<TensorDigest> recorded_tensors(JobPlan const& plan,
                                           std::span<std::uint64_t const> digests) {
  std::vector<TensorDigest> tensors =
      tensor_list(*plan.model, plan.target, !plan.stored_names, digests, plan.target_adds);
  name_masters(plan, tensors);
  add_shared(plan, tensors);
  if (plan.unseen.empty()) return tensors;
  std::unordered_set<std::string_view> unseen;
  for (TensorId const tensor : plan.unseen) unseen.insert(plan.model->tensor(tensor).name);
  std::erase_if(tensors, [&](TensorDigest const& one) { return unseen.contains(one.name); });
  return tensors;
}

Manifest target_manifest(JobSpec const& spec, JobPlan const& plan, TargetContents const& contents,
                         SourceFacts const& source) {
  Manifest made;
  made.tool_version = version_number();
  made.format = name(spec.target.format);
  made.map = plan.stored_names ? "none" : plan.map_name.empty() ? "mcore" : plan.map_name;
  made.frozen = plan.frozen;
  made.vocab = plan.vocab;
  made.files = file_records(plan, contents);
  for (std::size_t f = 0; f < contents.stamps.size(); ++f) {
    made.stamps.push_back({plan.files[f].path.generic_string(), contents.stamps[f]});
    made.stamps.back().stamp.device = 0;
  }
  for (std::size_t f = 0; f < contents.blocks.size(); ++f) {
    made.blocks.push_back(contents.blocks[f]);
    made.blocks.back().path = plan.files[f].path.generic_string();
  }
  if (!made.blocks.empty()) made.block_bytes = contents.block_bytes;
  made.source.set("path", spec.source.path)
      .set("format", source.format)
      .set("layout", source.layout);
  if (auto const* with = plan.made_with.members(); with != nullptr)
    for (auto const& [key, value] : *with) made.source.set(key, value);
  if (auto const* more = source.record.members(); more != nullptr)
    for (auto const& [key, value] : *more) made.source.set(key, value);
  if (source.record.find("nightly") != nullptr && made.files.empty())
    made.source.set("files", file_names(plan, contents.small_files));
  made.job = Json(job::recorded_text(spec));
  made.tensors = recorded_tensors(plan, contents.digests);
  for (std::size_t i = 0; i < plan.opaque.size(); ++i)
    made.objects.push_back(
        object_digest(plan, plan.opaque[i], contents.digests[plan.model->tensors().size() + i]));
  made.total = total_digest(made.tensors);
  return made;
}

}  // namespace reshard
