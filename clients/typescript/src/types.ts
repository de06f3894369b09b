// Written by clients/typescript/write_typescript.py from the server's declarations: change those.

/** An operation that a key called: when, on what, and with which result. */
export interface AuditEntry {
  at: string;
  /** The key's id; `admin.key` is the data folder's key; null: no valid key. */
  key: string | null;
  operation: string;
  gallery: string | null;
  subject: string | null;
  /** The id of the face, key, job or receipt that the operation is about, or the subject's new id. */
  target: string | null;
  /**
   * The HTTP status of the answer. 499: the client left before the answer; null: the operation has begun, its
   * result is unknown.
   */
  status: number | null;
  request_id: string;
}

export interface AuditPage {
  entries: Array<AuditEntry>;
  /** Send it as `cursor` for the next page; null on the last page. */
  next_cursor: string | null;
}

/** False match rates within groups of people. */
export interface BiasCard {
  measured_on: string;
  /** The calibration whose operating points were measured. */
  calibration: string;
  /** What was done about people who appear twice. */
  repeats: string;
  groups: Array<Group>;
}

/** An upright rectangle; it may extend beyond the photo's edge. */
export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Calibration {
  name: string;
  measured_on: string;
  /** Non-mated comparisons. */
  comparisons: number;
  mated: number;
  /** Whether decisions use this one. */
  default: boolean;
  points: Array<OperatingPoint>;
  /**
   * Comparisons with n faces of one subject count as n to this power independent ones; null if that was not
   * measured: then all count.
   */
  independence?: number | null;
  /** Null if the package's manifest has none. */
  scores?: Scores | null;
}

export type CalibrationSource = "package" | "gallery" | (string & {});

export interface CameraList {
  cameras: Array<CameraState>;
}

/** A camera: its watcher's report, and its sightings. */
export interface CameraState {
  /** Why there are no pictures now. */
  problem?: string | null;
  /** Pictures in which faces were looked for. */
  frames?: number;
  /** Faces in them. */
  faces?: number;
  /** Faces that were good enough to be compared. */
  usable?: number;
  /** Median width of a face in pixels. */
  width?: number | null;
  /** Why faces were not good enough, and how many. */
  reasons?: Record<string, number>;
  name: string;
  /** When a watcher last reported on it; null if none has. */
  told_at: string | null;
  /** Sightings of the last hour. */
  visits: number;
  /** How many of them were of known people. */
  known: number;
  /** When a face was last seen. */
  last_at: string | null;
  /** The newest sighting that has a crop. */
  picture: string | null;
}

export interface CameraTold {
  /** Why there are no pictures now. */
  problem?: string | null;
  /** Pictures in which faces were looked for. */
  frames?: number;
  /** Faces in them. */
  faces?: number;
  /** Faces that were good enough to be compared. */
  usable?: number;
  /** Median width of a face in pixels. */
  width?: number | null;
  /** Why faces were not good enough, and how many. */
  reasons?: Record<string, number>;
  /** The camera's name. */
  name: string;
}

/** A watcher's report on its cameras. */
export interface CamerasTold {
  cameras: Array<CameraTold>;
}

export interface Candidate {
  subject: string;
  name: string | null;
  /**
   * The score that the decision is based on: the cosine with the subject's face; for several faces, the cosine
   * with their mean template, reduced to the score of one photo at the same false match rate (the best face's
   * cosine if the package's calibration has no `fusion`). Rounded down unless the key has the scope `templates`.
   */
  score: number;
  /**
   * The cosine with the mean template of the subject's faces; null below the most lenient operating point,
   * unless the key has the scope `templates`.
   */
  template_score: number | null;
  /** The subject's face that is most alike. */
  face_id: string;
}

export interface Challenge {
  /** The token to answer with, once, with the same key and in the same gallery. */
  challenge: string;
  /**
   * In this order: look `ahead`; turn the head to the person's own `left` or `right`, by some 30 degrees; come
   * `nearer`, looking ahead, until the face is a quarter larger.
   */
  steps: Array<Step>;
  expires_at: string;
}

/** The answer of the operation that the challenge was made for, about the first frame; the other fields are null. */
export interface ChallengeAnswer {
  operation: "verify" | "identify" | "enroll";
  verify?: SubjectVerifyAnswer | null;
  identify?: IdentifyAnswer | null;
  enroll?: EnrollAnswer | null;
}

export interface ChallengeCreate {
  /** What is done with the first frame if the challenge succeeds. */
  operation: "verify" | "identify" | "enroll";
  /** Whom to verify or enroll; none for `identify`. */
  subject?: string | null;
}

export interface ChallengeRequest {
  /** The token of the challenge. */
  challenge?: string;
  /** Image files; repeat the field. */
  images: Array<string>;
}

/** Which face of a photo was used, and why. */
export interface Choice {
  /** Its index in the list that `/v1/detect` returns for the photo. */
  index: number;
  why: string;
  /** The next most prominent face's prominence as a share of the chosen one's; null if it is alone. */
  runner_up_share: number | null;
  /** For a track: the indexes of the images that were fused; the face is that of the best one. */
  track?: Array<number> | null;
}

/** The face of a photo that an operation used. */
export interface ChosenFace {
  box: Box;
  /**
   * x, y of the person's right eye, left eye, nose tip, right and left mouth corner; null if they could not be
   * measured (`unalignable`): such a face is never compared.
   */
  landmarks: Array<[number, number]> | null;
  /** The detector's score: how certain it is that this is a face. */
  score: number;
  quality: Quality;
  image: ImageSize;
  /** How many faces the photo has; the most prominent one was used. */
  faces: number;
  /** Null unless it was asked for. */
  liveness?: Liveness | null;
}

/** The places on disk that could hold the data, and how each was cleared. */
export interface Cleared {
  /** `overwritten` (SQLite), `vacuumed` or `rewritten` (PostgreSQL). */
  tables: string;
  write_ahead_log: string;
  /** This server's index snapshots, or the files of Milvus. */
  index_copies: string;
}

export interface Consent {
  /** A short note, e.g. where the signed form is. */
  note: string;
  /** Now if absent. */
  given_at?: string | null;
}

/** A probe that does not show the subject. */
export interface Correction {
  id: string;
  subject: string;
  model: string;
  /** Whether it can follow the gallery to another model package. */
  has_crop: boolean;
  created_at: string;
  expires_at: string;
}

export interface CorrectionList {
  /** All corrections of the subject, oldest first. A subject has at most 32: one more replaces the oldest. */
  corrections: Array<Correction>;
}

export interface CorrectionRequest {
  /** The face of the photo to use, by its index in the list of `/v1/detect`; the most prominent one if absent. */
  face?: number | null;
  /** When it expires; by default after `LIKENESS_CORRECTION_DAYS`. */
  expires_at?: string | null;
  /** Record it even if the photo matches the subject beyond doubt. */
  confirm?: boolean;
  /** An image file. */
  image: string;
}

export type CropPolicy = "crop" | "none" | (string & {});

/** The calibration that a threshold is from. */
export interface DecidedBy {
  source: CalibrationSource;
  /** Its name; null if the package has no operating points. */
  name: string | null;
  /**
   * Why the package's calibration decides though the gallery's own is switched on: it was not measured yet (nor
   * can it be, without the feature), has too few subjects, is of another model, or lacks this rate.
   */
  fallback?: Fallback | null;
  /**
   * Only for rates below those that the gallery supports: the rate found in the gallery divided by the one that
   * the package states, at the lowest supported rate. The package's lower rates are corrected by it.
   */
  ratio?: number | null;
}

export type Decision = "known" | "uncertain" | "unknown" | (string & {});

/** The server's default error rates and embedder, which a request or a gallery may override. */
export interface Defaults {
  /** Verification: false match rate. */
  fmr: number;
  /** Identification: false positive identification rate. */
  fpir: number;
  /** The model package of new galleries, `name@version`. */
  embedder: string;
}

export interface Deleted {
  /** How many sightings. */
  deleted: number;
}

export interface DetectAnswer {
  image: ImageSize;
  faces: Array<DetectedFace>;
  explain?: Explain | null;
}

export interface DetectRequest {
  /** Add stage timings and batch size to the answer. */
  explain?: boolean;
  /** An image file. */
  image: string;
}

export interface DetectedFace {
  box: Box;
  /**
   * x, y of the person's right eye, left eye, nose tip, right and left mouth corner; null if they could not be
   * measured (`unalignable`): such a face is never compared.
   */
  landmarks: Array<[number, number]> | null;
  /** The detector's score: how certain it is that this is a face. */
  score: number;
  quality: Quality;
}

export type Doubt = "low_quality" | (string & {});

export interface EmbedAnswer {
  image: ImageSize;
  faces: Array<EmbeddedFace>;
  /** The package that computed the embeddings; only compare embeddings of the same package. */
  model: string;
  explain?: Explain | null;
}

export interface EmbedRequest {
  /** The model package to use, as `name` or `name@version`; the server's default if absent. */
  model?: string | null;
  /** Add stage timings and batch size to the answer. */
  explain?: boolean;
  /** An image file. */
  image: string;
}

export interface EmbeddedFace {
  box: Box;
  /**
   * x, y of the person's right eye, left eye, nose tip, right and left mouth corner; null if they could not be
   * measured (`unalignable`): such a face is never compared.
   */
  landmarks: Array<[number, number]> | null;
  /** The detector's score: how certain it is that this is a face. */
  score: number;
  quality: Quality;
  /** The face's template: a vector of length 1; null if its landmarks could not be measured. */
  embedding: Array<number> | null;
}

export interface EnrollAnswer {
  subject: string;
  /** Whether the subject was new. */
  created: boolean;
  enrolled: Array<EnrolledFace>;
  rejected: Array<RejectedImage>;
  model: string;
  explain?: Explain | null;
}

export interface EnrollRequest {
  /**
   * `report` adds a verdict on whether each face is live, `require` also refuses those that are not
   * (`not_live`); the gallery's default if absent. A gallery's `require` always holds.
   */
  liveness?: LivenessMode | null;
  /** Add stage timings and batch size to the answer. */
  explain?: boolean;
  /**
   * The least quality to accept; `none` accepts all; `low` and `medium` also accept a head that is turned away,
   * if it matches a good photo of the request or a face of the subject.
   */
  quality?: QualityName;
  /** When to erase the subject with all its faces; unchanged if absent. */
  expires_at?: string | null;
  /** A note on the consent, given now; unchanged if absent. */
  consent?: string | null;
  /**
   * The face of the photo, sent alone, to use, by its index in the list of `/v1/detect`; the most prominent one
   * if absent.
   */
  face?: number | null;
  /**
   * What to do with a new face that is enrolled already, or that matches another subject. `warn`: enroll it, and
   * say so in its row. `reject`: don't enroll it. `allow`: don't look. The gallery's if absent.
   */
  on_conflict?: OnConflict | null;
  /**
   * The images show one person, such as a camera's track: whether that person is another subject is decided
   * once, by the mean of the images' templates.
   */
  track?: boolean;
  /** Image files; repeat the field. */
  images: Array<string>;
}

export interface EnrolledFace {
  /** The image's place in the request, counted from 0. */
  index: number;
  face_id: string;
  quality: Quality;
  box: Box;
  /** The same photo, enrolled before. */
  duplicate?: Resemblance | null;
  /** A face of another subject that it matches. */
  conflict?: Resemblance | null;
  /** If it looks like none of the subject's other faces, which are two or more: the most alike of them. */
  unlike?: Resemblance | null;
  /** Null unless it was asked for. */
  liveness?: Liveness | null;
}

export interface ErasedCounts {
  faces: number;
  templates: number;
  crops: number;
  /** Other subjects' corrections that may have shown the subject. */
  corrections?: number;
  /** Sightings of the subject, and of unknown people who resembled it. */
  sightings?: number;
}

/** The subject, as a hash that can be checked only with its id. */
export interface ErasedSubject {
  salt: string;
  /** SHA-256, hexadecimal, of the compact JSON list of salt, gallery and subject id. */
  digest: string;
}

/** An error rate measured on the gallery itself, with its 95 % interval, resampled by subject. */
export interface ErrorRate {
  value: number;
  low: number;
  high: number;
  /** How many faces it was measured on. */
  faces: number;
  subjects: number;
}

export type EventKind = "person_seen" | "unknown_seen" | "name_changed" | "left" | (string & {});

/** Explains how the answer came about; only with `explain=true`. */
export interface Explain {
  /**
   * Milliseconds in each stage (decode, detect, align, quality, liveness, embed, search, store), including
   * waiting; summed over the photos.
   */
  stages: Record<string, number>;
  /**
   * Number of independent comparisons of two photos that `threshold` allows for: one per subject; if the
   * package's calibration has no `fusion`, a subject of n faces counts as n to a measured power. Null if only
   * photos were compared.
   */
  comparisons?: number | null;
  /** The indexes of the images whose templates make the probe of a track; else null. */
  track?: Array<number> | null;
  /** Number of faces in the largest embedding batch, including those of other requests. */
  batch_size: number | null;
  /** For each photo of which one face was used: which face, and why. */
  chosen?: Array<Choice>;
  /**
   * For each face of the answer: the nearest subject that is not its match; null also if its score is not
   * answered.
   */
  nearest_other?: Array<NearestOther | null>;
  /** For each face of the answer: the candidates that corrections rule out. */
  ruled_out?: Array<Array<RuledOut>>;
}

export interface FaceMove {
  /** The face's new subject, in the same gallery. */
  subject: string;
}

export interface FacePage {
  faces: Array<StoredFace>;
  /** Send it as `cursor` for the next page; null on the last page. */
  next_cursor: string | null;
}

export interface FacesMove {
  /** The face's new subject, in the same gallery. */
  subject: string;
  /** The ids of the faces. */
  faces: Array<string>;
  /** Whether to create the new subject if it is missing. */
  create?: boolean;
}

export type Fallback = "not_measured" | "too_few_subjects" | "other_model" | "rate_not_supported" | (string & {});

/** Something that is probably wrong in a gallery. */
export interface Finding {
  id: string;
  /**
   * `same_person`: two subjects that may be one person. `two_people`: a subject whose faces fall into groups
   * that look like different people. `misplaced_face`: a face that looks like another subject and not like its
   * own. `corrected_face`: a face that looks like a probe recorded as not showing its subject. `outlier`: a face
   * that looks like none of its subject's others. `poor_face`: a poor face that could be confused with another
   * subject, and that its own subject doesn't need. `no_good_face`: a subject that has only poor faces.
   */
  kind: FindingKind;
  /** By how much the score exceeds the rule's threshold: the higher, the surer. */
  strength: number;
  face: FindingFace;
  /**
   * The face it was compared with: the other subject's most similar face; for an `outlier`, its own subject's
   * most similar face; null for `corrected_face` and `no_good_face`.
   */
  other: FindingFace | null;
  evidence: FindingEvidence;
  /** What can be done, the likeliest first. */
  actions: Array<FindingAction>;
  /** Whether it was marked as right. */
  dismissed: boolean;
}

/**
 * A way to correct a finding: merge `subject` into the subject `to`, split its `faces` off into a new subject
 * `to`, move its face to `to`, delete the face, or enroll a better photo of the subject.
 */
export interface FindingAction {
  do: "merge" | "part" | "move" | "delete" | "enroll";
  subject: string;
  face_id: string | null;
  to: string | null;
  /** For `part`: the faces of one of the two people. */
  faces?: Array<string>;
}

/**
 * The numbers behind a finding, null if they don't apply. Keys without `admin` get coarse scores, and null below
 * every operating point.
 */
export interface FindingEvidence {
  /** The score of the two faces; for a `corrected_face`, with the wrong probe; null for an `outlier`. */
  score: number | null;
  /** The face's best score with its own subject's other faces. */
  own_score: number | null;
  /** `same_person`: the smaller of the two shares of a subject's faces that match the other subject. */
  matching: number | null;
  /** The operating point that decided. */
  threshold: number | null;
  /** How often faces of two different people reach this score; null outside the measured range. */
  fmr: number | null;
}

export interface FindingFace {
  face_id: string;
  /** The id of its subject. */
  subject: string;
  /** The subject's name. */
  name: string | null;
  /** How many faces the subject has. */
  faces: number;
  quality: number;
  has_crop: boolean;
}

export type FindingKind = "same_person" | "two_people" | "misplaced_face" | "corrected_face" | "outlier" | "poor_face" | "no_good_face" | (string & {});

export interface Gallery {
  id: string;
  /** The model package whose templates this gallery holds. */
  embedder: string;
  store: CropPolicy;
  search: IndexKind;
  /**
   * Whose operating points decide: the model package's, or those measured among the gallery's own subjects,
   * where these support the rate.
   */
  calibration: CalibrationSource;
  allow_laxer: boolean;
  on_conflict: OnConflict;
  metadata: Record<string, JsonValue>;
  /** The declared groups of people; empty: none. */
  population?: Array<string>;
  /** What liveness is used for, unless a request says otherwise. */
  liveness: LivenessMode;
  subjects: number;
  faces: number;
  created_at: string;
}

/** The operating points of a gallery's own subjects, beside the package's. */
export interface GalleryCalibration {
  gallery: string;
  /**
   * Whose operating points decide: the model package's, or those measured among the gallery's own subjects,
   * where these support the rate.
   */
  calibration: CalibrationSource;
  allow_laxer: boolean;
  /** Which calibration decides now, at the highest rate. */
  decides: DecidedBy;
  /** Null before the first measurement. */
  measured: GalleryMeasured | null;
  /** From the highest rate to the lowest. */
  points: Array<GalleryPoint>;
  /** The suspicious pairs that still exist, at most 100. */
  pairs: Array<SuspiciousPair>;
  /** The current job, or the last one. */
  job: Job | null;
}

/** Whether the database and the search index contain the same faces with the same vectors. */
export interface GalleryCheck {
  ok: boolean;
  subjects: number;
  /** Faces in the database, which is authoritative. */
  faces: number;
  /** Faces in the index. */
  indexed: number;
  /** The differences; empty if there are none. */
  problems: Array<string>;
  /** Ids of some faces that are missing or different. */
  examples: Array<string>;
}

export interface GalleryCreate {
  /**
   * An id in any script, 1 to 255 characters, kept in Unicode's form NFC; neither `.` nor `..`, no control
   * characters. Percent-encode it in paths (`/` as `%2F`).
   */
  id: string;
  /**
   * The model package whose templates this gallery holds, as `name` or `name@version`; the server's default if
   * absent.
   */
  embedder?: string | null;
  /**
   * `crop` keeps each face's aligned 112x112 crop (for display and for moving to another model); `none` keeps
   * templates alone.
   */
  store?: CropPolicy;
  /**
   * How the vectors are searched; the answers are the same. `fp32`: as they are. `int8`: first by a copy of a
   * quarter of their size, then the best are scored exactly; faster, but uses a quarter more memory.
   */
  search?: IndexKind;
  /**
   * What to do with a new face that is enrolled already, or that matches another subject. `warn`: enroll it, and
   * say so in its row. `reject`: don't enroll it. `allow`: don't look.
   */
  on_conflict?: OnConflict;
  /** Any JSON object, within the server's size limit. */
  metadata?: Record<string, JsonValue>;
  /**
   * The groups of people that this gallery is for, by their names in the `bias_card` of its model (`GET
   * /v1/models`), e.g. `children-4-12`. Answers then carry `warnings` where the stated false match rate was seen
   * not to hold for them.
   */
  population?: Array<string>;
  /**
   * What verification, identification and enrollment of photos ask of liveness unless a request asks for
   * something else. `require` holds whatever a request asks.
   */
  liveness?: LivenessMode;
  /** Take a package without operating points: nobody is identified by it before it is measured. */
  force?: boolean;
  /** Take a package whose licence forbids commercial use. */
  accept_non_commercial?: boolean;
}

/** A gallery's calibration as it was measured. */
export interface GalleryMeasured {
  /** The package whose templates were compared. */
  model: string;
  measured_at: string;
  /** Subjects that the gallery had then. */
  subjects: number;
  faces: number;
  /** Subjects that were compared: all, or a random sample; at most 10 faces of each. */
  compared_subjects: number;
  compared_faces: number;
  /** Non-mated comparisons; 0 if too few subjects are enrolled. */
  comparisons: number;
  mated: number;
  /** Changes since the measurement, as a share of the faces; above 0.2 it is measured again. */
  changed: number;
  /** Pairs of subjects left out, since each may be one person. */
  suspicious: number;
  /**
   * Number of pairs of subjects expected to be this similar by chance, at the package's strictest operating
   * point.
   */
  suspicious_expected: number | null;
  /** Pairs of faces that were left out, since they are of such subjects. */
  left_out: number;
  /**
   * By how much each stated rate is too low at most, which is the case if all pairs left out are of different
   * people.
   */
  missed: number;
  scores: Scores | null;
}

export interface GalleryPage {
  galleries: Array<Gallery>;
  /** Send it as `cursor` for the next page; null on the last page. */
  next_cursor: string | null;
}

export interface GalleryPatch {
  /**
   * How the vectors are searched; the answers are the same. `fp32`: as they are. `int8`: first by a copy of a
   * quarter of their size, then the best are scored exactly; faster, but uses a quarter more memory.
   */
  search?: IndexKind | null;
  /**
   * Whose operating points decide: the model package's, or those measured among the gallery's own subjects,
   * where these support the rate.
   */
  calibration?: CalibrationSource | null;
  /** Whether the gallery's own thresholds may be laxer than the package's at 3.2 times the false match rate. */
  allow_laxer?: boolean | null;
  /**
   * What to do with a new face that is enrolled already, or that matches another subject. `warn`: enroll it, and
   * say so in its row. `reject`: don't enroll it. `allow`: don't look.
   */
  on_conflict?: OnConflict | null;
  /**
   * The groups of people that this gallery is for, by their names in the `bias_card` of its model (`GET
   * /v1/models`), e.g. `children-4-12`. Answers then carry `warnings` where the stated false match rate was seen
   * not to hold for them. An empty list declares none.
   */
  population?: Array<string> | null;
  /**
   * What verification, identification and enrollment of photos ask of liveness unless a request asks for
   * something else. `require` holds whatever a request asks.
   */
  liveness?: LivenessMode | null;
}

/** A threshold of the gallery; `_low`, `_high`: 95 % interval by bootstrap over subjects. */
export interface GalleryPoint {
  fmr: number;
  /** Measured in this gallery; null: its pairs don't support the rate. */
  threshold: number | null;
  threshold_low: number | null;
  threshold_high: number | null;
  /**
   * The threshold that decides if the gallery's calibration is switched on: its own, raised to the floor, or the
   * package's at a corrected rate; null: the rate is not supported.
   */
  decides: number | null;
  /** The package's threshold. */
  package: number | null;
  /** The false match rate in this gallery at the package's threshold. */
  found: number | null;
  found_low: number | null;
  found_high: number | null;
}

export interface GivenConsent {
  note: string;
  given_at: string;
}

export interface Group {
  /** Part of another group where there is a slash: `adults-18-59/female-asian`. */
  name: string;
  photos: number;
  comparisons: number;
  rates: Array<GroupRate>;
}

/** How often two different people of the group reach a threshold; `low`, `high`: 95 % interval. */
export interface GroupRate {
  /** The stated rate of this threshold. */
  fmr: number;
  threshold: number;
  found: number;
  low: number;
  high: number;
}

export interface GroupedFace {
  /** Its photo's place in the archive, from 0. */
  photo: number;
  /** Its photo's name in the archive. */
  name: string;
  /** Its index among the photo's faces, as enrollment takes it. */
  face: number;
  box: Box;
  quality: number;
}

export interface Health {
  status: "ok" | "starting" | "draining" | "index_unavailable" | "storage_unavailable" | "audit_unavailable";
  /**
   * Absent if there are none. `clock_ahead`: the clock is further ahead of the newest stored time than it can
   * be, so nothing is expired or deleted by its age until it is corrected, or has gone on steadily for 7 days.
   */
  warnings?: Array<"clock_ahead">;
}

export interface IdentifiedFace {
  box: Box;
  /**
   * x, y of the person's right eye, left eye, nose tip, right and left mouth corner; null if they could not be
   * measured (`unalignable`): such a face is never compared.
   */
  landmarks: Array<[number, number]> | null;
  /** The detector's score: how certain it is that this is a face. */
  score: number;
  quality: Quality;
  /**
   * `known`: the first candidate's score reaches `threshold`, and the face has the quality asked for;
   * `uncertain`: it reaches only `threshold_uncertain`, or the face is too poor (`reason`); `unknown`: neither,
   * or the face could not be compared.
   */
  decision: Decision;
  /** Why a face whose score reaches `threshold` is only `uncertain`; null otherwise. */
  reason: Doubt | null;
  /** The nearest subjects, best first, without those assigned to another face of the photo. */
  candidates: Array<Candidate>;
  /**
   * Index of the face that the nearest subject was assigned to, if it is another one: a person is in a photo
   * only once, except in a mirror, a collage or on an ID card. Null otherwise.
   */
  displaced_by: number | null;
  /** First candidate's answered score minus the second's; null without a second. */
  margin: number | null;
  /** A face must reach this score to be `known`. */
  threshold: number;
  /**
   * A face between this score and `threshold` is `uncertain`: the operating point of ten times the FMR, or the
   * highest one that was measured.
   */
  threshold_uncertain: number;
  /**
   * Null unless it was asked for. If liveness is required, a face that is not `live` is not searched for: it is
   * `unknown` without candidates. If no face is `live`, the answer is an error.
   */
  liveness?: Liveness | null;
}

export interface IdentifyAnswer {
  image: ImageSize;
  faces: Array<IdentifiedFace>;
  /** The false match rate of one comparison at `threshold`. */
  fmr: number;
  /**
   * The expected false positive identification rate for the whole gallery; lower than the server's default where
   * its default FMR is stricter (small galleries), unless a rate was asked for.
   */
  fpir: number;
  fmr_asked: number | null;
  fpir_asked: number | null;
  /**
   * Whether the server's default rates need an operating point that was not measured; `fpir` is then what to
   * expect.
   */
  limited: boolean;
  /** The calibration that `threshold` is from. */
  calibration: DecidedBy;
  /** How many subjects with at least one face the gallery has. */
  subjects: number;
  model: string;
  explain?: Explain | null;
  /** Only where a population was declared: why `fmr` does not hold for it; empty if nothing is known against it. */
  warnings?: Array<PopulationWarning> | null;
}

export interface IdentifyRequest {
  /**
   * The images show one person: their templates make one probe, decided once at the rates asked for. The most
   * prominent face of each counts, if it has the `quality`.
   */
  track?: boolean;
  /** The least quality of a face to be `known`; one below it is `uncertain` at most. */
  quality?: QualityName;
  /**
   * `report` adds a verdict on whether each face is live, `require` also refuses those that are not
   * (`not_live`); the gallery's default if absent. A gallery's `require` always holds.
   */
  liveness?: LivenessMode | null;
  /**
   * The group of people that the photo shows, by its name in the model's `bias_card`; by default the gallery's.
   * The answer then has `warnings`.
   */
  population?: string | null;
  /** Add stage timings and batch size to the answer. */
  explain?: boolean;
  /** Maximum candidates for each face. */
  limit?: number;
  /** False match rate of each single comparison. Can't be combined with `fpir`. */
  fmr?: number | null;
  /**
   * False positive identification rate: how often someone who is not enrolled may be taken for anyone in the
   * gallery; the threshold depends on the numbers of subjects and of their faces. Can't be combined with `fmr`.
   */
  fpir?: number | null;
  /** An image file; with `track=true` repeat the field. */
  image: string;
}

/** The upright original's size; boxes and landmarks are in its pixels. */
export interface ImageSize {
  width: number;
  height: number;
  /** Clockwise degrees by which the photo must be rotated so that its surest face is upright. */
  rotated?: number;
}

export type ImportContent = "photos" | "templates" | "archive" | (string & {});

export type IndexKind = "fp32" | "int8" | (string & {});

/** Work that outlasts a request. */
export interface Job {
  id: string;
  /** The kind of work. */
  kind: string;
  /** The gallery that it works on; null: all, or none. */
  gallery: string | null;
  state: JobStateName;
  /** Number of items processed so far. */
  done: number;
  /** Number of all items, if known. */
  total: number | null;
  /** Counters; `refused` and `warned` items are in its report. */
  counts: Record<string, number>;
  /** Why it failed. */
  error: JobError | null;
  /** Whether it has a result, a file to fetch. */
  has_result: boolean;
  /** The id of the key that created it. */
  key: string | null;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
}

export interface JobError {
  /** One of the error codes, or `job_crashed`. */
  code: string;
  message: string;
}

export interface JobPage {
  jobs: Array<Job>;
  /** Send it as `cursor` for the next page; null on the last page. */
  next_cursor: string | null;
}

export type JobStateName = "queued" | "running" | "done" | "failed" | "cancelled" | (string & {});

export type JsonValue = unknown;

/** A key, without its secret. */
export interface Key {
  id: string;
  name: string | null;
  scopes: Array<"read" | "recognize" | "enroll" | "admin" | "delete" | "metrics" | "watch" | "templates">;
  /** The only galleries it may see; null: all galleries. */
  galleries: Array<string> | null;
  /** Its own rate limit; null: the server's default. */
  rate: string | null;
  created_at: string;
  expires_at: string | null;
  rotated_at: string | null;
  revoked_at: string | null;
  /** Until when the previous secret works. */
  old_secret_until: string | null;
  /** Whether the server's keys file declares it. */
  declared: boolean;
}

/** The terms of a new key. */
export interface KeyCreate {
  /** By default the server chooses one. */
  id?: string | null;
  /** The key's owner or purpose; free text. */
  name?: string | null;
  /** What the key may do; `admin` includes all scopes but `templates`. */
  scopes: Array<"read" | "recognize" | "enroll" | "admin" | "delete" | "metrics" | "watch" | "templates">;
  /** The only galleries it may see; by default all. */
  galleries?: Array<string> | null;
  /** When it stops working; by default never. */
  expires_at?: string | null;
  /** The key's rate limit; by default the server's. */
  rate?: string | null;
  /** Whether its holder may also sign requests, as AWS's clients do. The secret is then stored, encrypted. */
  aws?: boolean;
}

export interface KeyPage {
  keys: Array<Key>;
  /** Send it as `cursor` for the next page; null on the last page. */
  next_cursor: string | null;
}

export interface KeyRotate {
  /** Seconds for which the previous secret keeps working too. */
  grace_seconds?: number;
}

export interface Licence {
  /** SPDX identifier, or the licence's own name. */
  name: string;
  non_commercial: boolean;
  url: string | null;
}

/** Whether a face is live or a picture of one, decided at measured thresholds; or no decision. */
export interface Liveness {
  /**
   * `live`; `spoof`; `uncertain`: between the thresholds, or smaller than what was measured; `not_measured`: the
   * packages have no operating points, so that nothing is decided.
   */
  live: "live" | "spoof" | "uncertain" | "not_measured";
  /** The models' mean probability of being live; it is not an error rate. */
  live_score: number;
  /** Why the face is not judged live; null if it is. */
  reason: LivenessDoubt | null;
}

export interface LivenessCalibration {
  name: string;
  measured_on: string;
  /** Photos of live people. */
  live: number;
  /** Photos of each kind of attack. */
  attacks: Record<string, number>;
  /** Longer side of the smallest live face measured, in pixels. */
  smallest_face: number;
  points: Array<LivenessPoint>;
  /** Hash of the packages whose scores were averaged. */
  measured_with: string;
}

export type LivenessDoubt = "low_score" | "between_thresholds" | "small_face" | "no_operating_points" | (string & {});

export type LivenessMode = "off" | "report" | "require" | (string & {});

/** A liveness package's classes, input and measurements. */
export interface LivenessModel {
  classes: Array<string>;
  /** The class that means a live person. */
  live: string;
  /** Sides of the cut, in sides of the face's box. */
  scale: number;
  /** Side of its input in pixels. */
  side: number;
  /** Empty: it decides nothing. */
  calibrations: Array<LivenessCalibration>;
}

export type LivenessOf = "both" | "image1" | "image2" | (string & {});

/** The errors at one threshold (ISO/IEC 30107-3). */
export interface LivenessPoint {
  threshold: number;
  /** Share of attacks judged live, for the kind of attack with the highest share. */
  apcer: LivenessRate;
  /** Share of live faces not judged live. */
  bpcer: LivenessRate;
}

/** A measured error rate with its 95 % interval. */
export interface LivenessRate {
  value: number;
  low: number;
  high: number;
}

/** The merged subject, and the faces to move back with `.../faces/move` to undo the merge. */
export interface MergedSubject {
  subject: Subject;
  /** The id of the subject that was merged and deleted. */
  merged: string;
  /** The ids of the faces that were the deleted subject's. */
  faces: Array<string>;
}

export interface Model {
  /** `name@version`. */
  id: string;
  name: string;
  version: string;
  /** `detect`, `embed` or `liveness`. */
  task: string;
  title: string;
  description: string;
  /** Whether this server is running it now. */
  loaded: boolean;
  /** Whether it was added here, and so can be removed. */
  added?: boolean;
  /** Where its file comes from: `file`, `carrier` (a Python package) or `url`. */
  source: string;
  sha256: string;
  licence: Licence;
  /** Length of its templates; null for other tasks. */
  dimension: number | null;
  calibrations: Array<Calibration>;
  /** How its operating points hold within groups of people; null: not measured. */
  bias_card?: BiasCard | null;
  /** Null for other tasks. */
  liveness?: LivenessModel | null;
  /** Where it runs, e.g. `cpu`; null when not loaded. */
  device: string | null;
  /** ONNX Runtime's execution providers. */
  providers: Array<string>;
  /** The package's origin and measurements. */
  provenance?: Record<string, unknown>;
  /** Parts of its manifest that are not used, e.g. another model's operating points. */
  warnings?: Array<string>;
}

export interface ModelList {
  defaults: Defaults;
  models: Array<Model>;
  /** Folders whose manifest can't be used; the server goes on without them. */
  skipped?: Array<SkippedModel>;
}

/** The sightings that became the subject's. */
export interface Named {
  sightings: Array<Sighting>;
}

/** The nearest subject besides the answer, which shows how close a false match was. */
export interface NearestOther {
  subject: string;
  name: string | null;
  score: number;
}

/** A key with its secret, which is only in this answer. */
export interface NewKey {
  id: string;
  name: string | null;
  scopes: Array<"read" | "recognize" | "enroll" | "admin" | "delete" | "metrics" | "watch" | "templates">;
  /** The only galleries it may see; null: all galleries. */
  galleries: Array<string> | null;
  /** Its own rate limit; null: the server's default. */
  rate: string | null;
  created_at: string;
  expires_at: string | null;
  rotated_at: string | null;
  revoked_at: string | null;
  /** Until when the previous secret works. */
  old_secret_until: string | null;
  /** Whether the server's keys file declares it. */
  declared: boolean;
  /** The whole key, to send in `Authorization: Bearer` or `x-api-key`. */
  secret: string;
  /** The access key id for AWS's clients, if the key was created with `aws`. */
  aws_access_key_id: string | null;
  /** The secret for AWS's clients, if the key was created with `aws`. */
  aws_secret_access_key: string | null;
}

export type OnConflict = "warn" | "reject" | "allow" | (string & {});

/** A threshold, named by its measured false match rate; `_low`, `_high`: 95 % interval. */
export interface OperatingPoint {
  fmr: number;
  threshold: number;
  threshold_low?: number | null;
  threshold_high?: number | null;
  fnmr?: number | null;
  fnmr_low?: number | null;
  fnmr_high?: number | null;
}

/** The scopes and galleries of the request's key. */
export interface OwnKey {
  /** `admin.key` is the data folder's key, which may do everything. */
  id: string;
  /** The key's scopes; `admin` implies all but `templates`. */
  scopes: Array<"read" | "recognize" | "enroll" | "admin" | "delete" | "metrics" | "watch" | "templates">;
  /** The only galleries it may see; null: all of them. */
  galleries: Array<string> | null;
}

/** The groups of faces that a grouping has found. There are none until its job has ended. */
export interface PhotoGroups {
  job: Job;
  /** The faces of each person; the person with the most faces comes first. */
  groups: Array<Array<GroupedFace>>;
  /** Photos without a usable face. */
  without: number;
}

export type PopulationCode = "population_rate_exceeded" | "population_not_measured" | (string & {});

/** Why a stated rate does not hold for a declared group of people; the figures have a 95 % interval. */
export interface PopulationWarning {
  code: PopulationCode;
  message: string;
  population: string;
  /** Found at a threshold as strict as the answer's or stricter. */
  fmr_found: number | null;
  fmr_found_low: number | null;
  fmr_found_high: number | null;
}

export type Preset = "insightface" | "adaface" | "sface" | "facenet" | "imagenet" | "unit" | "opencv" | (string & {});

export interface PullParams {
  /** One of `GET /v1/models/pullable`. */
  name: string;
  /** Accept a model whose licence forbids commercial use, since your use is not commercial. */
  accept_non_commercial?: boolean;
  /** For a model whose hash nobody published: the file's SHA-256, which you confirm. */
  sha256?: string | null;
}

export interface PullableFile {
  url: string;
  /** Null: nobody published it, so confirm the file's with `sha256`. */
  sha256: string | null;
}

/** A model that this version can pull by name. */
export interface PullableModel {
  name: string;
  installed: boolean;
  licence: Licence;
  /** What was measured with it; null if nothing was. */
  accuracy: string | null;
  /** Maximum bytes of its files. */
  max_bytes: number;
  /** Where they are fetched from. */
  files: Array<PullableFile>;
}

export interface PullableModels {
  models: Array<PullableModel>;
}

export interface Quality {
  /** Higher = fewer false non-matches expected. */
  score: number;
  /**
   * Why the quality is low, e.g. `small_face`, `low_sharpness`, `extreme_pose`; `unalignable`: it has no
   * landmarks and is never compared.
   */
  reasons: Array<string>;
}

export type QualityName = "none" | "low" | "medium" | "high" | (string & {});

/** A record of an erasure, signed with the server's key. */
export interface Receipt {
  format: 1;
  id: string;
  gallery: string;
  subject: ErasedSubject;
  reason: "asked" | "expired";
  /** When it was deleted: from then on, no answer contains the subject. */
  erased_at: string;
  erased: ErasedCounts;
  cleared: Cleared;
  /**
   * Whether all of `cleared` was done at `completed_at`. If not, the server does the rest soon after; the
   * receipt stays as it was signed. Says nothing of `not_reached`, and so nothing of other servers.
   */
  complete: boolean;
  completed_at: string;
  /** What this server can't clear, including other servers' copies. */
  not_reached: Array<string>;
  signature: Signature;
}

export interface ReceiptPage {
  receipts: Array<Receipt>;
  /** Send it as `cursor` for the next page; null on the last page. */
  next_cursor: string | null;
}

export interface ReembedStart {
  /** The model package to move to, as `name` or `name@version`. */
  embedder: string;
  /**
   * What to do with faces without a stored crop. `refuse`: do not start. `drop`: leave them out; a rollback
   * restores them until `finish` deletes them.
   */
  without_crop?: WithoutCrop;
  /** Days after the switch during which a rollback is possible; then the server finishes by itself. */
  keep_days?: number;
  /** Take a package without operating points: nobody is identified by it before it is measured. */
  force?: boolean;
  /** Take a package whose licence forbids commercial use. */
  accept_non_commercial?: boolean;
}

/** A gallery's move from one model package to another. */
export interface Reembedding {
  gallery: string;
  /** The package before the move. */
  source: string;
  /** The package after the move. */
  target: string;
  /**
   * `embedding`: faces get templates of the target, the source answers. `ready`: all faces have both (also after
   * a rollback), the source answers. `switched`: the target answers. `ending`: templates that are no longer
   * needed are being deleted.
   */
  state: "embedding" | "ready" | "switched" | "ending";
  without_crop: WithoutCrop;
  /** Faces without a template of the target, since they have no stored crop. */
  missing: number;
  keep_days: number;
  started_at: string;
  switched_at: string | null;
  /** Until when a rollback is possible. */
  keep_until: string | null;
  /** The current job, or the last one. */
  job: Job | null;
}

export interface RejectedImage {
  /** The image's place in the request, counted from 0. */
  index: number;
  /**
   * An error code: `no_face`, `face_unalignable`, `low_quality`, `not_live`, `duplicate_face`, `face_conflict`,
   * ...
   */
  code: string;
  /** For `low_quality`, `face_unalignable` and `not_live`: why. */
  reasons: Array<string>;
  message: string;
  /** The same photo, enrolled before. */
  duplicate?: Resemblance | null;
  /** A face of another subject that it matches. */
  conflict?: Resemblance | null;
}

/** The enrolled face that a new one resembles. All fields are null for keys without the scope `recognize`. */
export interface Resemblance {
  subject: string | null;
  name: string | null;
  face_id: string | null;
  score: number | null;
  /** The place of its image, if it came with the same request. */
  index: number | null;
}

export interface Resembling {
  sighting: Sighting;
  score: number;
}

/** Sightings of unknown people that may be of the same person. */
export interface ResemblingList {
  /** The most alike first. */
  resembling: Array<Resembling>;
}

/** A page of the findings of a gallery's last finished review. */
export interface Review {
  gallery: string;
  /** The last review's job, which may still run; null once it was cleaned up. */
  job: Job | null;
  /** Null until the first review has finished. */
  summary: ReviewSummary | null;
  /** The strongest first. */
  findings: Array<Finding>;
  /** Send it as `cursor` for the next page; null on the last page. */
  next_cursor: string | null;
}

/** What the last finished review compared, and how well the gallery tells its people apart. */
export interface ReviewSummary {
  /** The model package whose templates were compared. */
  model: string;
  subjects: number;
  faces: number;
  finished_at: string;
  /** The number of findings that were not dismissed, by kind. */
  counts: Record<string, number>;
  /** The number of findings that were marked as right. */
  dismissed: number;
  /** The operating point at which FNMR was counted. */
  fmr: number;
  verify_threshold: number;
  /** The share of faces that don't match their subject's other faces; null: too few subjects to say. */
  fnmr: ErrorRate | null;
  /** The rate that the calibration states for the identify threshold. */
  fpir_expected: number;
  identify_threshold: number;
  /**
   * The share of faces that another subject would be taken for if their own were not enrolled; null: too few
   * subjects to say.
   */
  fpir: ErrorRate | null;
}

/** A candidate that a correction rules out: the probe is more like a recorded wrong probe than like its faces. */
export interface RuledOut {
  subject: string;
  /** The subject's score; null below the floor. */
  score: number | null;
  /** The id of the correction. */
  correction: string;
  /** The score against its probe; null below the floor. */
  correction_score: number | null;
}

/** A histogram of scores: pairs in each of 100 equal bins from -1 to 1. */
export interface Scores {
  nonmated: Array<number>;
  mated: Array<number>;
}

/** The public part of the key that the server signs with. */
export interface ServerKey {
  /** The first 8 bytes of the public key's SHA-256, hexadecimal. */
  key_id: string;
  algorithm: "Ed25519";
  /** The public key's 32 bytes (RFC 8032), as base64. */
  public_key: string;
  /** The public key as PEM. */
  pem: string;
}

/** A browser that stays signed in. */
export interface Session {
  expires_at: string;
}

/** A visit of one person in front of one camera. */
export interface Sighting {
  camera: string;
  /** The named part of the camera's picture that the face was in last. */
  zone: string | null;
  decision: Decision;
  /** Who it is; of a sighting that is uncertain, who it may be. */
  subject: string | null;
  name: string | null;
  /** The stranger's id, if the person was grouped as one. */
  stranger: string | null;
  /** The score of the track's mean template; coarse, and null below the floor. */
  score: number | null;
  /** The score minus the next subject's. */
  margin: number | null;
  threshold: number;
  /** The highest rate at which visits of people who are not enrolled are called known. */
  fpir: number;
  /** How many photos were used. */
  frames: number;
  first_at: string;
  id: string;
  /** Quality of the best photo. */
  quality: number;
  last_at: string;
  ended: boolean;
  expires_at: string;
  has_crop: boolean;
}

export interface SightingHeard {
  /** When the face was last seen. */
  last_at: string;
  /** Whether the person has left. */
  ended?: boolean;
  /** The named part of the camera's picture that the face was in last. */
  zone?: string | null;
}

export interface SightingPage {
  /** The newest first. */
  sightings: Array<Sighting>;
  /** Send it as `cursor` for the next page; null on the last page. */
  next_cursor: string | null;
}

export interface SightingRequest {
  /** The camera's name. */
  camera?: string;
  /** The named part of the camera's picture that the face was in last. */
  zone?: string | null;
  /** When the track began; by default `last_at`. */
  first_at?: string | null;
  /** When the face was last seen; by default now. */
  last_at?: string | null;
  /** Whether the person has left. */
  ended?: boolean;
  /** Image files; repeat the field. */
  images: Array<string>;
}

/** A code that signs a browser in with the request's key, once and until it expires. */
export interface SignInCode {
  /** The link is the page's address with `#code=` and this code appended. */
  code: string;
  expires_at: string;
}

/** A signature over everything else in the document, as UTF-8 JSON with sorted keys and without white space. */
export interface Signature {
  algorithm: "Ed25519";
  key_id: string;
  /** Base64; compare it with one that you kept before. */
  public_key: string;
  /** Base64. */
  value: string;
}

/** A folder in the models folder that contains no usable package. */
export interface SkippedModel {
  folder: string;
  /** What is wrong with its manifest. */
  problem: string;
}

export type Step = "ahead" | "left" | "right" | "nearer" | (string & {});

/** One enrolled image of a subject. */
export interface StoredFace {
  face_id: string;
  /** Where the face was in the photo that was enrolled. */
  box: Box;
  quality: Quality;
  model: string;
  /** Whether `.../crop` returns its crop. */
  has_crop: boolean;
  created_at: string;
}

/** An unnamed person, grouped from sightings. */
export interface Stranger {
  id: string;
  /** Whether this person causes no events. */
  ignored: boolean;
  note: string | null;
  sightings: number;
  first_at: string;
  last_at: string;
  cameras: Array<string>;
  /** The sighting whose crop is the best. */
  best: string;
  expires_at: string;
}

export interface StrangerEdit {
  /** Whether this person causes no events from now on. */
  ignored?: boolean | null;
  /** Who it may be. */
  note?: string | null;
}

export interface StrangerMerge {
  /** The stranger who takes the sightings. */
  into: string;
}

export interface StrangerName {
  /**
   * An id in any script, 1 to 255 characters, kept in Unicode's form NFC; neither `.` nor `..`, no control
   * characters. Percent-encode it in paths (`/` as `%2F`).
   */
  subject: string;
  /** Further sightings of the same person, chosen from the `resembling` ones. */
  also?: Array<string>;
}

export interface StrangerPage {
  strangers: Array<Stranger>;
  /** Send it as `cursor` for the next page; null on the last page. */
  next_cursor: string | null;
}

export interface StrangerPart {
  /** The sightings that show another person. */
  sightings: Array<string>;
  /**
   * Also move the sightings that resemble these more than they resemble the stranger's remaining sighting that
   * is least similar to these.
   */
  alike?: boolean;
}

export interface Subject {
  id: string;
  name: string | null;
  metadata: Record<string, JsonValue>;
  face_count: number;
  created_at: string;
  updated_at: string;
  /** From then on no answer contains it; null: never. */
  expires_at: string | null;
  consent: GivenConsent | null;
  /** The id of the face that shows it, if one was chosen. */
  cover?: string | null;
  /** The id of the face whose crop shows it: its cover, or the first one; null: no crop. */
  portrait?: string | null;
}

export interface SubjectCreate {
  /** How programs call the subject; made by the server if absent. */
  id?: string | null;
  /** How people call the subject; free text in any script. */
  name?: string | null;
  /** Any JSON object, within the server's size limit. */
  metadata?: Record<string, JsonValue>;
  /** From then on no answer contains the subject, and soon it is erased. */
  expires_at?: string | null;
  /** The consent to keep the subject. */
  consent?: Consent | null;
}

export interface SubjectMerge {
  /** The subject that gets all faces, in the same gallery. */
  into: string;
}

export interface SubjectPage {
  subjects: Array<Subject>;
  /** Send it as `cursor` for the next page; null on the last page. */
  next_cursor: string | null;
}

/** Changes: a given field replaces the old value as a whole (metadata is not merged), an absent one stays. */
export interface SubjectPatch {
  /** The new id, which no other subject of the gallery has; all else stays. */
  id?: string;
  /** The new name; null removes it. */
  name?: string | null;
  /** The new metadata; replaces all of the old. */
  metadata?: Record<string, JsonValue>;
  /** The new time of expiry; null: never. */
  expires_at?: string | null;
  /** The new consent; null removes it. */
  consent?: Consent | null;
  /** The id of the face that shows the subject; null: none. */
  cover?: string | null;
}

export interface SubjectVerifyAnswer {
  /** Whether `decision` is `known`. */
  match: boolean;
  /**
   * `known`: the score reaches `threshold`, and the faces have the quality asked for; `uncertain`: it reaches
   * only `threshold_uncertain`, or a face is too poor (`reason`); `unknown`: neither.
   */
  decision: Decision;
  /** Why a face whose score reaches `threshold` is only `uncertain`; null otherwise. */
  reason: Doubt | null;
  /**
   * The score that the decision is based on (of a subject: see `Candidate`); unless the key has the scope
   * `templates`, rounded down, and null below the most lenient operating point.
   */
  score: number | null;
  threshold: number;
  /** The operating point of ten times the FMR, as in `identify`. */
  threshold_uncertain: number;
  /** The false match rate measured at `threshold`. */
  fmr: number;
  /** The requested false match rate; null: the server's default. */
  fmr_asked: number | null;
  /** The calibration that `threshold` is from. */
  calibration: DecidedBy;
  model: string;
  explain?: Explain | null;
  /** Only where a population was declared: why `fmr` does not hold for it; empty if nothing is known against it. */
  warnings?: Array<PopulationWarning> | null;
  subject: string;
  name: string | null;
  /**
   * The cosine with the mean template of the subject's faces; null below the most lenient operating point,
   * unless the key has the scope `templates`.
   */
  template_score: number | null;
  /** The subject's face that is most alike. */
  face_id: string;
  face: ChosenFace;
}

export interface SubjectVerifyRequest {
  /**
   * The images show one person: their templates make one probe, decided once at the rates asked for. The most
   * prominent face of each counts, if it has the `quality`.
   */
  track?: boolean;
  /** The least quality of a face to be `known`; one below it is `uncertain` at most. */
  quality?: QualityName;
  /**
   * `report` adds a verdict on whether each face is live, `require` also refuses those that are not
   * (`not_live`); the gallery's default if absent. A gallery's `require` always holds.
   */
  liveness?: LivenessMode | null;
  /**
   * The group of people that the photo shows, by its name in the model's `bias_card`; by default the gallery's.
   * The answer then has `warnings`.
   */
  population?: string | null;
  /** Add stage timings and batch size to the answer. */
  explain?: boolean;
  /** False match rate of the operating point to decide at; the server's default if absent. */
  fmr?: number | null;
  /** An image file; with `track=true` repeat the field. */
  image: string;
}

export interface SuspiciousFace {
  subject: string;
  /** The subject's name. */
  name: string | null;
  face_id: string;
}

/** Two subjects who may be one person, with their most similar faces. */
export interface SuspiciousPair {
  first: SuspiciousFace;
  second: SuspiciousFace;
  score: number;
}

export interface VerifyAnswer {
  /** Whether `decision` is `known`. */
  match: boolean;
  /**
   * `known`: the score reaches `threshold`, and the faces have the quality asked for; `uncertain`: it reaches
   * only `threshold_uncertain`, or a face is too poor (`reason`); `unknown`: neither.
   */
  decision: Decision;
  /** Why a face whose score reaches `threshold` is only `uncertain`; null otherwise. */
  reason: Doubt | null;
  score: number;
  threshold: number;
  /** The operating point of ten times the FMR, as in `identify`. */
  threshold_uncertain: number;
  /** The false match rate measured at `threshold`. */
  fmr: number;
  /** The requested false match rate; null: the server's default. */
  fmr_asked: number | null;
  /** The calibration that `threshold` is from. */
  calibration: DecidedBy;
  model: string;
  explain?: Explain | null;
  /** Only where a population was declared: why `fmr` does not hold for it; empty if nothing is known against it. */
  warnings?: Array<PopulationWarning> | null;
  face1: ChosenFace;
  face2: ChosenFace;
}

export interface VerifyRequest {
  /**
   * The images show one person: their templates make one probe, decided once at the rates asked for. The most
   * prominent face of each counts, if it has the `quality`.
   */
  track?: boolean;
  /** The least quality of a face to be `known`; one below it is `uncertain` at most. */
  quality?: QualityName;
  /**
   * `report` adds a verdict on whether each face is live, `require` also refuses those that are not
   * (`not_live`); the gallery's default if absent. A gallery's `require` always holds.
   */
  liveness?: LivenessMode | null;
  /** The model package to use, as `name` or `name@version`; the server's default if absent. */
  model?: string | null;
  /**
   * The group of people that the photo shows, by its name in the model's `bias_card`; by default the gallery's.
   * The answer then has `warnings`.
   */
  population?: string | null;
  /** Add stage timings and batch size to the answer. */
  explain?: boolean;
  /** False match rate of the operating point to decide at; the server's default if absent. */
  fmr?: number | null;
  /**
   * The face of the first photo to use, by its index in the list of `/v1/detect`; the most prominent one if
   * absent.
   */
  face1?: number | null;
  /**
   * The face of the second photo to use, by its index in the list of `/v1/detect`; the most prominent one if
   * absent.
   */
  face2?: number | null;
  /** Which photos are checked for liveness; the other one may show a document. */
  liveness_of?: LivenessOf;
  /** An image file; with `track=true` repeat the field. */
  image1: string;
  /** An image file; with `track=true` repeat the field. */
  image2: string;
}

export interface Version {
  name: string;
  version: string;
}

export interface Webhook {
  id: string;
  url: string;
  kinds: Array<EventKind>;
  galleries: Array<string> | null;
  cameras: Array<string> | null;
  /** Null: events about anybody. Subjects that were deleted or expired are missing; if all are, nothing is sent. */
  subjects: Array<WebhookSubject> | null;
  quiet_s: number;
  /** `set_aside`: it has failed for a day, and waits to be resumed. */
  state: "active" | "set_aside";
  /** The number of the last event that was delivered, or left out for good. */
  cursor: number;
  /** Failed attempts to send the next event. */
  attempts: number;
  failing_since: string | null;
  last_error: string | null;
  delivered_at: string | null;
  created_at: string;
}

export interface WebhookCreate {
  /** Where events are posted. */
  url: string;
  /** Which events. */
  kinds?: Array<EventKind>;
  /** Of these galleries alone. */
  galleries?: Array<string> | null;
  /** Of these cameras alone. */
  cameras?: Array<string> | null;
  /** Only events that name one of these people, and `name_changed` events that take such a name back. */
  subjects?: Array<WebhookSubject> | null;
  /** After an event, others of the same kind, camera and person are left out for this many seconds. */
  quiet_s?: number;
}

export interface WebhookList {
  webhooks: Array<Webhook>;
}

/** A new webhook, with its secret, which is not shown again. */
export interface WebhookMade {
  id: string;
  url: string;
  kinds: Array<EventKind>;
  galleries: Array<string> | null;
  cameras: Array<string> | null;
  /** Null: events about anybody. Subjects that were deleted or expired are missing; if all are, nothing is sent. */
  subjects: Array<WebhookSubject> | null;
  quiet_s: number;
  /** `set_aside`: it has failed for a day, and waits to be resumed. */
  state: "active" | "set_aside";
  /** The number of the last event that was delivered, or left out for good. */
  cursor: number;
  /** Failed attempts to send the next event. */
  attempts: number;
  failing_since: string | null;
  last_error: string | null;
  delivered_at: string | null;
  created_at: string;
  /** The secret that deliveries are signed with, as Standard Webhooks specifies. */
  secret: string;
}

export interface WebhookSubject {
  /**
   * An id in any script, 1 to 255 characters, kept in Unicode's form NFC; neither `.` nor `..`, no control
   * characters. Percent-encode it in paths (`/` as `%2F`).
   */
  gallery: string;
  /**
   * An id in any script, 1 to 255 characters, kept in Unicode's form NFC; neither `.` nor `..`, no control
   * characters. Percent-encode it in paths (`/` as `%2F`).
   */
  subject: string;
}

export interface Who {
  /** Whom it shows; null: it does not show the person it was taken for. */
  subject?: string | null;
  /** Also enroll the sighting's crop; the subject is made if it is missing. */
  enroll?: boolean;
}

export type WithoutCrop = "refuse" | "drop" | (string & {});
