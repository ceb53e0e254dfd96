#include "pipeline/records/target_manifest.hpp"

#include <gtest/gtest.h>

#include "tests/pipeline/small_job.hpp"

namespace reshard {
namespace {

struct Case {
  test::SmallJob job = test::small_job(test::small_limits(true));
  JobSpec spec = test::small_spec("/next");
  std::vector<std::uint64_t> digests =
      std::vector<std::uint64_t>(job.plan.plan.tensor_bytes.size(), 7);
  std::vector<FileRecord> small_files{{"z.json", 5, 1}, {".metadata", 9, 2}};
  std::vector<FileHashes> hashes =
      std::vector<FileHashes>(job.plan.files.size(), FileHashes{100, 3, 4, 100});
  Json record;

  Manifest made(bool read_back) const {
    return target_manifest(spec, job.plan, {digests, small_files, read_back, hashes, {}},
                           {"dcp", "1 file", record});
  }
};

TEST(TargetManifest, ListsFilesByPathWhereTheyWereReadBack) {
  Case const one;
  Manifest const made = one.made(true);
  ASSERT_EQ(made.files.size(), 2 + one.job.plan.files.size());
  EXPECT_TRUE(std::ranges::is_sorted(made.files, {}, &FileRecord::path));
  EXPECT_EQ(made.files.front(), (FileRecord{".metadata", 9, 2}));
  FileRecord const weights{one.job.plan.files.front().path.generic_string(), 100, 3};
  EXPECT_NE(std::ranges::find(made.files, weights), made.files.end());
  EXPECT_TRUE(one.made(false).files.empty());
}

TEST(TargetManifest, SaysWhatTheSourceWas) {
  Case one;
  one.record = Json().set("nightly", true);
  Manifest const made = one.made(true);
  EXPECT_EQ(*made.source.find("path")->text(), "/next/source");
  EXPECT_EQ(*made.source.find("format")->text(), "dcp");
  EXPECT_EQ(*made.source.find("layout")->text(), "1 file");
  EXPECT_TRUE(*made.source.find("nightly")->boolean());
  EXPECT_EQ(made.source.find("files"), nullptr);
}

TEST(TargetManifest, IsTheSameHoweverTheRunWentAboutIt) {
  Case one;
  std::string const before = manifest_text(one.made(true));
  one.spec.run = {.memory_bytes = 1 << 20,
                  .device_memory_bytes = 1 << 21,
                  .transport = TransportChoice::mpi,
                  .device = DeviceChoice::emulated,
                  .io = static_cast<IoChoice>(1),
                  .work_stealing = WorkStealingChoice::never,
                  .threads = 3,
                  .stall_seconds = 7,
                  .progress_seconds = 9};
  EXPECT_EQ(manifest_text(one.made(true)), before);
  Case checked;
  checked.spec.run.self_check = 10;
  EXPECT_NE(manifest_text(checked.made(true)), before);
  Case streamed;
  streamed.spec.run.verify = VerifyChoice::streamed;
  EXPECT_NE(manifest_text(streamed.made(true)), before);
}

TEST(TargetManifest, HasTheJobAsAJobFile) {
  Case one;
  one.spec.target.replace = true;
  one.spec.run.verify = VerifyChoice::streamed;
  Json const text = one.made(true).job;
  JobSpec const read = parse_job_spec(*text.text(), "the record", {});
  EXPECT_EQ(read, one.spec);  // whose other keys of [run] have their defaults
}

TEST(TargetManifest, ANightlyJobNamesItsFilesInAnyCase) {
  Case one;
  one.record = Json().set("nightly", true);
  Manifest const made = one.made(false);
  Json const* const files = made.source.find("files");
  ASSERT_NE(files, nullptr);
  EXPECT_EQ(files->items()->size(), 2 + one.job.plan.files.size());
}

TEST(TargetManifest, HasTheDigestOfEveryTensor) {
  Case const one;
  Manifest const made = one.made(true);
  ASSERT_EQ(made.tensors.size(), 3U);
  EXPECT_EQ(made.map, "none");
  EXPECT_EQ(made.format, "dcp");
  for (TensorDigest const& tensor : made.tensors) {
    EXPECT_EQ(tensor.crc64, 7U);
    EXPECT_TRUE(tensor.axes.empty()) << "the names are the source's";
  }
  EXPECT_EQ(made.total, total_digest(made.tensors));
}

}  // namespace
}  // namespace reshard
