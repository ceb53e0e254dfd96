// HDF5 containers that do not belong together, or hold values that no run has written.

#include "core/formats/format.hpp"
#include "tests/core/containers/hdf5/container_files.hpp"
#include "tests/support/expect_refused.hpp"

namespace reshard::hdf5 {
namespace {

namespace fs = std::filesystem;

/// A container of one tensor and these objects.
Sample container(std::string const& tensor, std::vector<ObjectSpec> objects = {}) {
  return {.datasets = {{tensor, DType::u8, {4}, {"out"}}},
          .objects = std::move(objects),
          .attributes = {{"map", "sample"},
                         {"names", "logical"},
                         {"part", "1"},
                         {"parts", "1"},
                         {"prediction_layers", "0"},
                         {"vocab", "4"}}};
}

void replace(RootAttributes& attributes, std::string const& key, std::string const& value) {
  for (auto& [name, old] : attributes)
    if (name == key) old = value;
}

Sample part(std::string const& tensor, int number, int of) {
  Sample sample = container(tensor);
  replace(sample.attributes, "part", std::to_string(number));
  replace(sample.attributes, "parts", std::to_string(of));
  return sample;
}

void open(fs::path const& folder) { open_checkpoint(folder, FormatId::hdf5, {}, LoneReader()); }

void expect_refused(std::string_view words, std::vector<Sample> const& files) {
  ScratchFolder const scratch("hdf5_source_damage");
  for (std::size_t f = 0; f < files.size(); ++f)
    files[f].write_all(scratch.path() / fmt::format("{}.h5", f));
  test::expect_refused(ErrorKind::source, words, [&] { open(scratch.path()); });
}

TEST(Hdf5SourceDamage, OneContainerIsRead) {
  ScratchFolder const scratch("hdf5_source_damage");
  container("w").write_all(scratch.path() / "a.h5");
  EXPECT_NO_THROW(open(scratch.path()));
}

TEST(Hdf5SourceDamage, FilesOfSeveralCheckpointsAreRefused) {
  expect_refused("holds \"w\", and so does", {part("w", 1, 2), part("w", 2, 2)});
}

TEST(Hdf5SourceDamage, AttributesThatAreNoNumbersAreRefused) {
  Sample sample = container("w");
  replace(sample.attributes, "vocab", "many");
  expect_refused("its attribute 'vocab' is 'many', expected a number", {sample});
}

TEST(Hdf5SourceDamage, ObjectsThatAreNoJsonOrTooLargeAreRefused) {
  ScratchFolder const scratch("hdf5_source_args");
  Sample const with_args = container("w", {{"args.json", 1}});
  with_args.write_all(scratch.path() / "a.h5");
  File::open_for_writing(scratch.path() / "a.h5")
      .write_at(with_args.plan().object_offset_bytes[0], std::as_bytes(std::span("9", 1)));
  test::expect_refused(ErrorKind::source, "holds no JSON object", [&] { open(scratch.path()); });
  expect_refused("\"config.json\" has 15.3 MiB, 15.3 MiB are read at most",
                 {container("w", {{"config.json", 16'000'001}})});
}

TEST(Hdf5SourceDamage, AFolderWithoutFilesIsRefused) {
  ScratchFolder const scratch("hdf5_source_damage");
  test::expect_refused(ErrorKind::source, "holds no HDF5 file (*.h5, *.hdf5)",
                       [&] { format_of(FormatId::hdf5).open(scratch.path(), {}, LoneReader()); });
}

}  // namespace
}  // namespace reshard::hdf5
