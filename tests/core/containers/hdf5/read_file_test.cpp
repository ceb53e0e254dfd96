#include <algorithm>
#include <map>

#include <sys/stat.h>

#include "tests/core/containers/hdf5/container_files.hpp"

namespace reshard::hdf5 {
namespace {

void expect_found(Sample const& sample, ContainerPlan const& plan,
                  std::vector<std::uint64_t> const& digests, Found const& found) {
  std::map<std::string, FoundDataset> by_name;
  for (FoundDataset const& each : found.tensors) by_name[each.name] = each;
  ASSERT_EQ(by_name.size(), sample.datasets.size());
  auto const ranges = sample.ranges(plan);
  for (std::size_t i = 0; i < sample.datasets.size(); ++i) {
    DatasetSpec const& spec = sample.datasets[i];
    FoundDataset const& tensor = by_name.at(spec.name);
    EXPECT_EQ(tensor.dtype, spec.dtype) << spec.name;
    EXPECT_EQ(tensor.shape, spec.shape) << spec.name;
    EXPECT_EQ(tensor.axes, spec.axes) << spec.name;
    EXPECT_EQ(tensor.domain, spec.domain) << spec.name;
    EXPECT_EQ(tensor.offset_bytes, ranges[i].first) << spec.name;
    EXPECT_EQ(tensor.size_bytes, ranges[i].second - ranges[i].first) << spec.name;
    EXPECT_EQ(tensor.digest, digests[i]) << spec.name;
  }
  EXPECT_TRUE(std::ranges::is_sorted(found.tensors, {}, &FoundDataset::offset_bytes));
  ASSERT_EQ(found.objects.size(), sample.objects.size());
  EXPECT_EQ(found.attributes, sample.attributes);
  EXPECT_TRUE(found.container);
}

void expect_round_trip(Sample const& sample) {
  ScratchFolder const folder("hdf5_round_trip");
  auto const path = folder.path() / "x.h5";
  auto const digests = sample.write_all(path);
  Found found;
  ASSERT_EQ(refusal([&] { found = read_file(path); }), "");
  expect_found(sample, sample.plan(), digests, found);
}

TEST(Hdf5ReadFile, FindsWhatWasPlanned) { expect_round_trip(small_sample()); }

TEST(Hdf5ReadFile, FindsAContainerOfNothing) { expect_round_trip({}); }

TEST(Hdf5ReadFile, EveryDTypeComesBack) {
  Sample sample;
  for (int i = 0; i <= static_cast<int>(last_dtype); ++i) {
    auto const dtype = static_cast<DType>(i);
    sample.datasets.push_back({std::string(name(dtype)), dtype, {3, 8}, {"out", "in"}});
    sample.datasets.push_back({fmt::format("empty {}", name(dtype)), dtype, {0, 8}});
    if (bits(dtype) >= 8)
      sample.datasets.push_back({fmt::format("scalar {}", name(dtype)), dtype, {}});
  }
  expect_round_trip(sample);
}

TEST(Hdf5ReadFile, OddNamesComeBack) {
  Sample sample;
  for (std::string_view const name :
       {"/", "%", "%2F", "a/b/c", "a//b", "größe", "重み", "a b", "...", "~"})
    sample.datasets.push_back({std::string(name), DType::i16, {2}});
  sample.datasets.push_back({std::string(16'384, '%'), DType::u8, {1}});
  sample.objects = {{"a/b", 3}, {std::string(16'384, '/'), 2}};
  expect_round_trip(sample);
}

TEST(Hdf5ReadFile, LargeAndManyRootAttributesComeBack) {
  Sample sample;
  for (int i = 0; i < 40; ++i)
    sample.attributes.emplace_back(fmt::format("key{:02}", i),
                                   std::string(static_cast<std::size_t>(i) * 50, 'v'));
  sample.attributes.emplace_back("z", std::string(300'000, 'z'));
  expect_round_trip(sample);
}

TEST(Hdf5ReadFile, ManyDimensionsComeBack) {
  Sample sample;
  DatasetSpec spec = {"deep", DType::u16, std::vector<Index>(32, 1), {}};
  spec.shape[31] = 5;
  for (int i = 0; i < 32; ++i) spec.axes.push_back(fmt::format("a{}", i));
  sample.datasets = {spec};
  expect_round_trip(sample);
}

TEST(Hdf5ReadFile, OtherFilesAreNone) {
  ScratchFolder const folder("hdf5_others");
  expect_says(refusal([&] { read_file(folder.path() / "absent.h5"); }), {"3: ", "absent.h5"});
  expect_says(refusal([&] { read_file(folder.empty_file("empty.h5", 0)); }),
              {"3: ", "no HDF5 signature"});
  expect_says(refusal([&] { read_file(folder.empty_file("zeros.h5", 5000)); }),
              {"3: ", "no HDF5 signature"});
  ASSERT_EQ(::mkfifo((folder.path() / "fifo").c_str(), 0600), 0);
  expect_says(refusal([&] { read_file(folder.path() / "fifo"); }), {"3: ", "not a regular file"});
  auto const path = folder.empty_file("late.h5", 5000);
  File::open_for_writing(path).write_at(2048, std::as_bytes(std::span("\x89HDF\r\n\x1a\n", 8)));
  EXPECT_TRUE(looks_like_hdf5(path));
  expect_says(refusal([&] { read_file(path); }), {"3: ", "cannot open it"});
  File::open_for_writing(folder.empty_file("odd.h5", 5000))
      .write_at(1000, std::as_bytes(std::span("\x89HDF\r\n\x1a\n", 8)));
  EXPECT_FALSE(looks_like_hdf5(folder.path() / "odd.h5"));
}

TEST(Hdf5ReadFile, CutFilesAreRefused) {
  ScratchFolder const folder("hdf5_cut");
  Sample const sample = small_sample();
  auto const path = folder.path() / "x.h5";
  sample.write_all(path);
  std::uint64_t const size = std::filesystem::file_size(path);
  for (std::uint64_t const kept : {std::uint64_t{0}, std::uint64_t{4}, std::uint64_t{8},
                                   std::uint64_t{40}, std::uint64_t{100}, size / 2, size - 1}) {
    auto const cut = folder.path() / "cut.h5";
    std::filesystem::copy_file(path, cut, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(cut, kept);
    EXPECT_TRUE(refusal([&] { read_file(cut); }).starts_with("3: ")) << kept;
  }
}

}  // namespace
}  // namespace reshard::hdf5
