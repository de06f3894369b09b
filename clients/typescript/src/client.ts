// Written by clients/typescript/write_typescript.py from the server's declarations: change those.

import { type Call, type Image, type Options, Sender, pages, path } from "./call.ts";
import type * as T from "./types.ts";

/** A client of one server; a method for each operation. Each throws LikenessError. */
export class Client {
  readonly #sender: Sender;

  constructor(options: Options = {}) {
    this.#sender = new Sender(options);
  }

  /** Send a call that this client has no method for. */
  send<Answer>(call: Call): Promise<Answer> {
    return this.#sender.send(call);
  }

  /**
   * Find the faces in a photo.
   *
   * Each face has its box, five landmarks and quality; the best detector score comes first. The list is empty if
   * there is no face. Faces may be as small as 20 pixels or larger than the frame, and turned by any angle. A
   * face whose landmarks can't be measured has none, and the reason `unalignable`.
   */
  detect(image: Image, query: { explain?: boolean } = {}): Promise<T.DetectAnswer> {
    return this.send({ method: "POST", path: "/v1/detect", images: { image }, query });
  }

  /**
   * Turn the faces in a photo into vectors.
   *
   * The same as detect, each face with its embedding: a vector of length 1 whose dot product with another of the
   * same `model` is the score. It is null for a face whose landmarks can't be measured.
   */
  embed(image: Image, query: { model?: string | null; explain?: boolean } = {}): Promise<T.EmbedAnswer> {
    return this.send({ method: "POST", path: "/v1/embed", images: { image }, query });
  }

  /**
   * Do two photos show the same person?
   *
   * Compares the most prominent face of each photo (large, and near the middle), or the faces at `face1` and
   * `face2`, at the operating point of `fmr`, and decides: known, uncertain or unknown. With `track=true`, both
   * `image1` and `image2` may be several images of one person, as in `identify`.
   */
  verify(image1: Image | readonly Image[], image2: Image | readonly Image[], query: { track?: boolean; quality?: T.QualityName; liveness?: T.LivenessMode | null; model?: string | null; population?: string | null; explain?: boolean; fmr?: number | null; face1?: number | null; face2?: number | null; liveness_of?: T.LivenessOf } = {}): Promise<T.VerifyAnswer> {
    return this.send({ method: "POST", path: "/v1/verify", images: { image1, image2 }, query });
  }

  /**
   * Who is in this photo?
   *
   * Searches the gallery for every face of the photo, and decides for each: known, uncertain or unknown. A
   * subject is given to at most one face of the photo, the best-scoring one. Without `fmr` or `fpir` the
   * server's defaults for both hold, or the strictest measured operating point if the gallery is too large.
   * Unless the key has the scope `templates`, scores are rounded down without changing a decision, and
   * candidates below the most lenient operating point are left out, because enough exact scores would reveal the
   * enrolled templates.
   *
   * With `track=true`, several images of one person, as from a camera, are one probe. The answer has one face,
   * that of the best image, or none if no image shows a face of the `quality`.
   */
  identify(gallery: string, image: Image | readonly Image[], query: { track?: boolean; quality?: T.QualityName; liveness?: T.LivenessMode | null; population?: string | null; explain?: boolean; limit?: number; fmr?: number | null; fpir?: number | null } = {}): Promise<T.IdentifyAnswer> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/identify", { gallery }), images: { image }, query });
  }

  /**
   * Is this person the subject?
   *
   * Compares the photo's most prominent face with the subject's enrolled faces; the best score counts. Scores
   * are rounded as `identify` says, and null below the most lenient operating point. `track=true`: as in
   * `identify`.
   */
  verifySubject(gallery: string, subject: string, image: Image | readonly Image[], query: { track?: boolean; quality?: T.QualityName; liveness?: T.LivenessMode | null; population?: string | null; explain?: boolean; fmr?: number | null } = {}): Promise<T.SubjectVerifyAnswer> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/subjects/{subject}/verify", { gallery, subject }), images: { image }, query });
  }

  /**
   * Enroll photos of a person.
   *
   * Adds each photo's face to the subject, which is created if it is missing. At the time of the answer, the
   * faces are in the database and searches find them. Photos without a face, with several equally prominent
   * ones, or of too low quality are listed in `rejected` with their reasons, and the others are enrolled. If no
   * photo is good enough, nothing changes and the answer is an error.
   *
   * Unless `on_conflict` is `allow`, each face is first compared with those enrolled. In its row, `duplicate` is
   * the same photo, saved again or not, and `conflict` a face of another subject that it matches at an FPIR of
   * 0.001. With `track=true` the mean of all faces that are good enough is compared once, and its conflict is in
   * each row. Keys with the scope `recognize` also see `unlike`: the most alike of the subject's own faces, if
   * it has two or more and the new one looks like none of them (FMR 0.001). Two requests at the same moment may
   * miss each other's faces. These rows tell a key with `enroll` alone whether a face is enrolled and, by trying
   * ids, whose: a face of its own subject is no `conflict`. In a gallery that says `allow`, asking for another
   * policy needs `recognize` too.
   */
  enroll(gallery: string, subject: string, images: readonly Image[], query: { liveness?: T.LivenessMode | null; explain?: boolean; quality?: T.QualityName; expires_at?: string | null; consent?: string | null; face?: number | null; on_conflict?: T.OnConflict | null; track?: boolean } = {}): Promise<T.EnrollAnswer> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/subjects/{subject}/faces", { gallery, subject }), images: { images: images }, query });
  }

  /**
   * List a subject's faces.
   *
   * Lists them in the order of their enrollment, page by page.
   */
  faces(gallery: string, subject: string, query: { limit?: number; cursor?: string | null } = {}): Promise<T.FacePage> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/subjects/{subject}/faces", { gallery, subject }), query });
  }

  /** The faces of all pages. */
  allFaces(gallery: string, subject: string, query: { limit?: number; cursor?: string | null } = {}): AsyncGenerator<T.StoredFace> {
    return pages((cursor) => this.faces(gallery, subject, { ...query, ...(cursor === undefined ? {} : { cursor }) }), (page) => page.faces);
  }

  /**
   * List galleries.
   *
   * Lists the galleries that the key may see, with their counts, in the order of their creation, page by page.
   */
  galleries(query: { limit?: number; cursor?: string | null } = {}): Promise<T.GalleryPage> {
    return this.send({ method: "GET", path: "/v1/galleries", query });
  }

  /** The galleries of all pages. */
  allGalleries(query: { limit?: number; cursor?: string | null } = {}): AsyncGenerator<T.Gallery> {
    return pages((cursor) => this.galleries({ ...query, ...(cursor === undefined ? {} : { cursor }) }), (page) => page.galleries);
  }

  /**
   * Create a gallery.
   *
   * Creates an empty gallery. It will hold templates of one model package, which may be any installed one.
   */
  createGallery(body: T.GalleryCreate): Promise<T.Gallery> {
    return this.send({ method: "POST", path: "/v1/galleries", json: { ...body } });
  }

  /**
   * Show a gallery.
   *
   * Answers the gallery with the number of its subjects and faces.
   */
  gallery(gallery: string): Promise<T.Gallery> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}", { gallery }) });
  }

  /**
   * Change how a gallery is searched, what decides in it, its duplicates, its liveness, or whom it is for.
   *
   * An absent field stays as it is. Every kind of search gives the same answers. The index is rebuilt in memory,
   * here at once and in other servers of the same database soon after. With `calibration` set to `gallery` its
   * operating points are measured soon, and decide from then on.
   */
  updateGallery(gallery: string, body: T.GalleryPatch): Promise<T.Gallery> {
    return this.send({ method: "PATCH", path: path("/v1/galleries/{gallery}", { gallery }), json: { ...body } });
  }

  /**
   * Delete a gallery with everyone in it.
   *
   * Deletes the gallery, its subjects, their faces, stored crops and vectors. This can't be undone.
   */
  deleteGallery(gallery: string): Promise<void> {
    return this.send({ method: "DELETE", path: path("/v1/galleries/{gallery}", { gallery }), answer: "nothing" });
  }

  /**
   * List the subjects of a gallery.
   *
   * Lists them in the order of their creation, page by page; with `search` only those whose id or name contains
   * it.
   */
  subjects(gallery: string, query: { limit?: number; cursor?: string | null; search?: string | null; expires_before?: string | null; offset?: number } = {}): Promise<T.SubjectPage> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/subjects", { gallery }), query });
  }

  /** The subjects of all pages. */
  allSubjects(gallery: string, query: { limit?: number; cursor?: string | null; search?: string | null; expires_before?: string | null; offset?: number } = {}): AsyncGenerator<T.Subject> {
    return pages((cursor) => this.subjects(gallery, { ...query, ...(cursor === undefined ? {} : { cursor }) }), (page) => page.subjects);
  }

  /**
   * Create a subject.
   *
   * Creates a subject without faces. The server makes an id unless one is given. Enrolling also creates a
   * missing subject; this is for giving it a name first.
   */
  createSubject(gallery: string, body: T.SubjectCreate = {}): Promise<T.Subject> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/subjects", { gallery }), json: { ...body } });
  }

  /**
   * Show a subject.
   *
   * Answers the subject with its name, metadata and number of faces.
   */
  subject(gallery: string, subject: string): Promise<T.Subject> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/subjects/{subject}", { gallery, subject }) });
  }

  /**
   * Change a subject's id, name, metadata, expiry, consent or cover.
   *
   * A given field replaces the old value as a whole (metadata too), an absent field stays as it is, null removes
   * it. Faces, corrections and sightings follow a new id; the audit log has it beside the old one.
   */
  updateSubject(gallery: string, subject: string, body: T.SubjectPatch): Promise<T.Subject> {
    return this.send({ method: "PATCH", path: path("/v1/galleries/{gallery}/subjects/{subject}", { gallery, subject }), json: { ...body } });
  }

  /**
   * Delete a subject with its faces.
   *
   * Deletes the subject, its faces, their stored crops and vectors. This can't be undone.
   */
  deleteSubject(gallery: string, subject: string): Promise<void> {
    return this.send({ method: "DELETE", path: path("/v1/galleries/{gallery}/subjects/{subject}", { gallery, subject }), answer: "nothing" });
  }

  /**
   * Show a face.
   *
   * Answers where the face was in its photo, its quality, and the model that computed its template.
   */
  face(gallery: string, subject: string, faceId: string): Promise<T.StoredFace> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/subjects/{subject}/faces/{face_id}", { gallery, subject, face_id: faceId }) });
  }

  /**
   * Delete a face.
   *
   * Deletes the face, its stored crop and its vector. The subject stays, even without faces, unless it is
   * unnamed.
   */
  deleteFace(gallery: string, subject: string, faceId: string): Promise<void> {
    return this.send({ method: "DELETE", path: path("/v1/galleries/{gallery}/subjects/{subject}/faces/{face_id}", { gallery, subject, face_id: faceId }), answer: "nothing" });
  }

  /**
   * Show a face's crop.
   *
   * Answers the aligned 112x112 crop that the template was computed from, as JPEG, if the gallery keeps crops.
   */
  faceCrop(gallery: string, subject: string, faceId: string): Promise<Blob> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/subjects/{subject}/faces/{face_id}/crop", { gallery, subject, face_id: faceId }), answer: "blob" });
  }

  /**
   * Show what this key may do.
   *
   * Answers the id, scopes and galleries of the request's own key, so that a program can offer only what the key
   * allows. Any key may call this.
   */
  ownKey(): Promise<T.OwnKey> {
    return this.send({ method: "GET", path: "/v1/key" });
  }

  /**
   * List the jobs.
   *
   * Lists the jobs of the galleries that the key may see, newest first, page by page. Finished jobs are kept for
   * `LIKENESS_JOB_DAYS`.
   */
  jobs(query: { limit?: number; cursor?: string | null; gallery?: string | null; state?: T.JobStateName | null } = {}): Promise<T.JobPage> {
    return this.send({ method: "GET", path: "/v1/jobs", query });
  }

  /** The jobs of all pages. */
  allJobs(query: { limit?: number; cursor?: string | null; gallery?: string | null; state?: T.JobStateName | null } = {}): AsyncGenerator<T.Job> {
    return pages((cursor) => this.jobs({ ...query, ...(cursor === undefined ? {} : { cursor }) }), (page) => page.jobs);
  }

  /**
   * Show a job.
   *
   * Answers its progress, its counts, and how it ended.
   */
  job(job: string): Promise<T.Job> {
    return this.send({ method: "GET", path: path("/v1/jobs/{job}", { job }) });
  }

  /**
   * Cancel a job.
   *
   * A queued job is cancelled at once, a running one within seconds; what it has done stays done. A finished job
   * stays as it is.
   */
  cancelJob(job: string): Promise<T.Job> {
    return this.send({ method: "POST", path: path("/v1/jobs/{job}/cancel", { job }) });
  }

  /**
   * Read a job's report.
   *
   * Lists every item that was rejected so far, or enrolled with a warning, as lines of JSON or as CSV: its
   * number, name, code, message, reasons and whether it was enrolled.
   */
  jobReport(job: string, query: { format?: "jsonl" | "csv" } = {}): Promise<Blob> {
    return this.send({ method: "GET", path: path("/v1/jobs/{job}/report", { job }), query, answer: "blob" });
  }

  /**
   * Does the server take requests?
   *
   * 200 when models are warm and galleries can be searched; 503 before that, and while the server stops. If
   * vectors are searched in Milvus, also 503 while Milvus can't be reached; this is checked every 2 seconds.
   * Also 503 after a failed write to the database or to `LIKENESS_AUDIT_SINK`, as on a full disk, until one
   * succeeds; this is tried every 2 seconds. `warnings` lists problems that do not keep it from answering, and
   * is renewed every minute.
   */
  ready(): Promise<T.Health> {
    return this.send({ method: "GET", path: "/readyz" });
  }

  /**
   * Show the server's version.
   *
   * Answers the name of the program and its version.
   */
  version(): Promise<T.Version> {
    return this.send({ method: "GET", path: "/version" });
  }

  /**
   * List the model packages.
   *
   * Lists every package in the models folder: its licence, SHA-256, measured operating points, and whether it is
   * running. Folders whose manifest can't be used are in `skipped`.
   */
  models(): Promise<T.ModelList> {
    return this.send({ method: "GET", path: "/v1/models" });
  }

  /**
   * Add a model.
   *
   * Takes a face embedder's ONNX file, with `name`, `preset` and `licence`, or the tar of a model package: its
   * folder with `manifest.json` and the file that the manifest names. Answers with the job that checks and adds
   * the model, in a process with limits of memory and time. An archive's operating points are accepted without a
   * check.
   */
  addModel(tar: Blob | ReadableStream<Uint8Array>, query: { name?: string | null; preset?: T.Preset | null; licence?: string | null; non_commercial?: boolean } = {}): Promise<T.Job> {
    return this.send({ method: "POST", path: "/v1/models", body: tar, query });
  }

  /**
   * List the keys.
   *
   * Lists all keys, including revoked ones, in the order of their creation, page by page. Secrets are never
   * shown.
   */
  keys(query: { limit?: number; cursor?: string | null } = {}): Promise<T.KeyPage> {
    return this.send({ method: "GET", path: "/v1/keys", query });
  }

  /** The keys of all pages. */
  allKeys(query: { limit?: number; cursor?: string | null } = {}): AsyncGenerator<T.Key> {
    return pages((cursor) => this.keys({ ...query, ...(cursor === undefined ? {} : { cursor }) }), (page) => page.keys);
  }

  /**
   * Create a key.
   *
   * The `secret` is in this answer and never shown again: the server stores only its hash. With `aws` it also
   * stores the secret, encrypted with the data folder's `vault.key`, since it needs the secret to check
   * signatures. Only a key with the scope `templates` can give this scope.
   */
  createKey(body: T.KeyCreate): Promise<T.NewKey> {
    return this.send({ method: "POST", path: "/v1/keys", json: { ...body } });
  }

  /**
   * Show a key.
   *
   * Answers what the key may do and whether it was revoked, but never its secret.
   */
  key(key: string): Promise<T.Key> {
    return this.send({ method: "GET", path: path("/v1/keys/{key}", { key }) });
  }

  /**
   * Revoke a key.
   *
   * Revokes the key for good: at once in this process, within a second in others. The key stays listed, and its
   * id can't be used again.
   */
  revokeKey(key: string): Promise<void> {
    return this.send({ method: "DELETE", path: path("/v1/keys/{key}", { key }), answer: "nothing" });
  }

  /**
   * Give a key a new secret.
   *
   * The new `secret` is in this answer and never shown again. The previous secret works for `grace_seconds`
   * more; older ones stop working. Only a key with the scope `templates` can rotate a key that has it.
   */
  rotateKey(key: string, body: T.KeyRotate = {}): Promise<T.NewKey> {
    return this.send({ method: "POST", path: path("/v1/keys/{key}/rotate", { key }), json: { ...body } });
  }

  /**
   * Show the server's public key.
   *
   * Keep this key to check documents that the server has signed. All servers of a database have the same key.
   */
  serverKey(): Promise<T.ServerKey> {
    return this.send({ method: "GET", path: "/v1/server-key" });
  }

  /**
   * Make a sign-in code.
   *
   * The page's address with `#code=` and the code appended is a link that signs a browser in with the request's
   * own key. It works once, within a minute, or within a day if it is meant for somebody else. So the link that
   * stays in a browser's history is useless.
   */
  createSignInCode(query: { valid?: "minute" | "day" } = {}): Promise<T.SignInCode> {
    return this.send({ method: "POST", path: "/v1/sign-in-codes", query });
  }

  /**
   * Stay signed in.
   *
   * Gives the browser a session of the request's own key, in a cookie that scripts can't read. With this cookie
   * and the header `x-likeness-session`, the page's requests need no key. The session ends after
   * `LIKENESS_SESSION_DAYS`, when its key ends, or by signing out.
   */
  beginSession(): Promise<T.Session> {
    return this.send({ method: "POST", path: "/v1/session" });
  }

  /**
   * Sign out.
   *
   * Ends the request's session, and deletes its cookie in the browser.
   */
  endSession(): Promise<void> {
    return this.send({ method: "DELETE", path: "/v1/session", answer: "nothing" });
  }

  /**
   * Read the audit log.
   *
   * Answers which key did what, when, to which gallery and subject, with which result. Entries contain ids, but
   * never images, vectors or metadata. Changes are recorded before they begin; all other entries appear within a
   * second.
   */
  audit(query: { limit?: number; cursor?: string | null; key?: string | null; operation?: string | null; gallery?: string | null; subject?: string | null; since?: string | null; until?: string | null; changes?: boolean; order?: "newest" | "oldest" } = {}): Promise<T.AuditPage> {
    return this.send({ method: "GET", path: "/v1/audit", query });
  }

  /** The entries of all pages. */
  allAudit(query: { limit?: number; cursor?: string | null; key?: string | null; operation?: string | null; gallery?: string | null; subject?: string | null; since?: string | null; until?: string | null; changes?: boolean; order?: "newest" | "oldest" } = {}): AsyncGenerator<T.AuditEntry> {
    return pages((cursor) => this.audit({ ...query, ...(cursor === undefined ? {} : { cursor }) }), (page) => page.entries);
  }

  /**
   * Erase a subject for good.
   *
   * Deletes the subject with everything about it, clears what the disk may still contain of it, and answers with
   * a signed receipt that says what was erased and what the server can't reach.
   */
  eraseSubject(gallery: string, subject: string, query: { rewrite?: boolean } = {}): Promise<T.Receipt> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/subjects/{subject}/erase", { gallery, subject }), query });
  }

  /**
   * List the receipts of erasures.
   *
   * Lists all complete receipts, in the order of the erasures, page by page. They are kept forever.
   */
  receipts(query: { limit?: number; cursor?: string | null } = {}): Promise<T.ReceiptPage> {
    return this.send({ method: "GET", path: "/v1/receipts", query });
  }

  /** The receipts of all pages. */
  allReceipts(query: { limit?: number; cursor?: string | null } = {}): AsyncGenerator<T.Receipt> {
    return pages((cursor) => this.receipts({ ...query, ...(cursor === undefined ? {} : { cursor }) }), (page) => page.receipts);
  }

  /**
   * Show the receipt of an erasure.
   *
   * The answer is the signed document. Save it as a file, and `likeness receipts verify` checks it without a
   * server.
   */
  receipt(receipt: string): Promise<T.Receipt> {
    return this.send({ method: "GET", path: path("/v1/receipts/{receipt}", { receipt }) });
  }

  /**
   * List a subject's corrections.
   *
   * Lists the corrections that have not expired, oldest first.
   */
  corrections(gallery: string, subject: string): Promise<T.CorrectionList> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/subjects/{subject}/corrections", { gallery, subject }) });
  }

  /**
   * Say that a photo does not show the subject.
   *
   * Send the photo of a wrong answer again. The template of its face is kept, and its crop if the gallery keeps
   * crops. From then on, a probe that is more similar to this face than to the subject's own faces is neither
   * `known` as the subject nor a match; `explain` lists the subjects that corrections ruled out. A correction
   * expires; it is erased with its subject, and dropped when the subject is merged into another. Unless
   * `confirm` is given, the photo is first compared with the subject, for which the key also needs the scope
   * `recognize`.
   */
  addCorrection(gallery: string, subject: string, image: Image, query: { face?: number | null; expires_at?: string | null; confirm?: boolean } = {}): Promise<T.Correction> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/subjects/{subject}/corrections", { gallery, subject }), images: { image }, query });
  }

  /**
   * Delete a correction.
   *
   * The correction no longer counts when people are identified.
   */
  deleteCorrection(gallery: string, subject: string, correction: string): Promise<void> {
    return this.send({ method: "DELETE", path: path("/v1/galleries/{gallery}/subjects/{subject}/corrections/{correction}", { gallery, subject, correction }), answer: "nothing" });
  }

  /**
   * Merge a subject into another one.
   *
   * In one step, the other subject gets all faces, which keep their ids, and this subject is deleted. The other
   * subject keeps its name, metadata and consent, and gets those that it lacks; the earlier expiry counts. If
   * the request is repeated within a day, it changes nothing and gets the same answer. To undo it, move `faces`
   * back.
   */
  mergeSubject(gallery: string, subject: string, body: T.SubjectMerge): Promise<T.MergedSubject> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/subjects/{subject}/merge", { gallery, subject }), json: { ...body } });
  }

  /**
   * Move a face to another subject.
   *
   * The face keeps its id, template, quality and crop. After the answer, searches find it under its new subject.
   * The old subject stays, even if it has no face left.
   */
  moveFace(gallery: string, subject: string, faceId: string, body: T.FaceMove): Promise<T.StoredFace> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/subjects/{subject}/faces/{face_id}/move", { gallery, subject, face_id: faceId }), json: { ...body } });
  }

  /**
   * Move several faces to another subject.
   *
   * Moves all faces or none, in the same way as a single face. Answers with the new subject.
   */
  moveFaces(gallery: string, subject: string, body: T.FacesMove): Promise<T.Subject> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/subjects/{subject}/faces/move", { gallery, subject }), json: { ...body } });
  }

  /**
   * Check a gallery.
   *
   * Checks that the database and the search index contain the same faces with the same vectors, and that the
   * gallery's model package is the one that made the vectors.
   */
  checkGallery(gallery: string): Promise<T.GalleryCheck> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/check", { gallery }) });
  }

  /**
   * Measure a gallery's own operating points.
   *
   * Starts a job that compares faces of different subjects, and finds the threshold at each false match rate
   * that their pairs support. Subjects who may be one person are left out and listed. Decisions change only
   * where the gallery's `calibration` is `gallery`.
   */
  calibrateGallery(gallery: string): Promise<T.GalleryCalibration> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/calibration", { gallery }) });
  }

  /**
   * Show a gallery's own operating points.
   *
   * Answers the points with their intervals, the package's points, the false match rates found in the gallery at
   * these, and subjects who may be one person.
   */
  calibration(gallery: string): Promise<T.GalleryCalibration> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/calibration", { gallery }) });
  }

  /**
   * Ask a person to follow steps.
   *
   * The server picks the order of the steps. Show them one after the other, take a frame of each, and send all
   * frames with `answer` within two minutes. This rejects most photos that are held up to the camera. It does
   * not reject a film of the right steps, replayed or generated, or photos of all the poses. To enroll, the key
   * also needs the scope `enroll`.
   */
  createChallenge(gallery: string, body: T.ChallengeCreate): Promise<T.Challenge> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/challenges", { gallery }), json: { ...body } });
  }

  /**
   * Answer a challenge with a frame for each step; then verify, identify or enroll the first frame.
   *
   * Each frame must show its step, and all frames the same person; `challenge_failed` names the first step that
   * fails. The operation decides at the server's error rates, and judges liveness if the gallery requires it. No
   * frame is kept. A challenge can't be answered again, even if it failed.
   */
  answerChallenge(gallery: string, images: readonly Image[], query: { challenge?: string } = {}): Promise<T.ChallengeAnswer> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/challenges/answer", { gallery }), images: { images: images }, query });
  }

  /**
   * Review a gallery.
   *
   * Starts a job that compares every face with the whole gallery and lists what is probably wrong: people
   * enrolled twice, faces of another person, poor faces. It also measures how well the gallery tells its people
   * apart. If a review is running already, the answer is its job.
   */
  startReview(gallery: string): Promise<T.Job> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/review", { gallery }) });
  }

  /**
   * List a review's findings.
   *
   * Lists the last finished review's findings that were not dismissed, strongest first, page by page. A finding
   * disappears when one of its faces is moved or deleted.
   */
  review(gallery: string, query: { limit?: number; cursor?: string | null; kind?: T.FindingKind | null; dismissed?: boolean } = {}): Promise<T.Review> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/review", { gallery }), query });
  }

  /** The findings of all pages. */
  allReview(gallery: string, query: { limit?: number; cursor?: string | null; kind?: T.FindingKind | null; dismissed?: boolean } = {}): AsyncGenerator<T.Finding> {
    return pages((cursor) => this.review(gallery, { ...query, ...(cursor === undefined ? {} : { cursor }) }), (page) => page.findings);
  }

  /**
   * Mark a finding as right.
   *
   * The finding leaves the list, and later reviews don't list it again unless they find the same with other
   * faces.
   */
  dismissFinding(gallery: string, finding: string): Promise<void> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/review/{finding}/dismiss", { gallery, finding }), answer: "nothing" });
  }

  /**
   * Reopen a finding.
   *
   * The finding is in the list again, and later reviews list it too.
   */
  reopenFinding(gallery: string, finding: string): Promise<void> {
    return this.send({ method: "DELETE", path: path("/v1/galleries/{gallery}/review/{finding}/dismiss", { gallery, finding }), answer: "nothing" });
  }

  /**
   * Move the gallery to another model package.
   *
   * Starts a job that embeds every face's stored crop with the other package and then switches the gallery to it
   * in one step. The gallery answers requests throughout. Call it again for the same package to resume a stopped
   * move, or to switch again after a rollback.
   */
  reembed(gallery: string, body: T.ReembedStart): Promise<T.Reembedding> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/reembed", { gallery }), json: { ...body } });
  }

  /**
   * Show the gallery's move.
   *
   * Answers from which package to which the gallery moves, the progress, and until when a rollback is possible.
   */
  reembedding(gallery: string): Promise<T.Reembedding> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/reembed", { gallery }) });
  }

  /**
   * Cancel the gallery's move.
   *
   * Possible before the switch, or after a rollback: the gallery stays with the source package, and the target's
   * templates are deleted.
   */
  cancelReembedding(gallery: string): Promise<T.Reembedding> {
    return this.send({ method: "DELETE", path: path("/v1/galleries/{gallery}/reembed", { gallery }) });
  }

  /**
   * Go back to the previous model package.
   *
   * The source package answers again at once, also for faces enrolled since the switch.
   */
  rollBackReembedding(gallery: string): Promise<T.Reembedding> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/reembed/rollback", { gallery }) });
  }

  /**
   * Finish the gallery's move.
   *
   * Deletes the source package's templates, and the faces that have no others. After this, no rollback is
   * possible. The server does this by itself after `keep_until`.
   */
  finishReembedding(gallery: string): Promise<T.Reembedding> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/reembed/finish", { gallery }) });
  }

  /**
   * Import many faces.
   *
   * Takes a tar (or tar.gz) of photos with one folder per person, of templates computed elsewhere, or of an
   * exported gallery, and answers with the job that enrolls them. The job's report lists what it rejects.
   */
  importFaces(gallery: string, tar: Blob | ReadableStream<Uint8Array>, query: { content?: T.ImportContent; quality?: T.QualityName; on_conflict?: T.OnConflict | null; package?: string | null; normalize?: boolean; trust?: string | null } = {}): Promise<T.Job> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/import", { gallery }), body: tar, query });
  }

  /**
   * Group photos by face.
   *
   * Takes a tar (or tar.gz) of photos without names, and answers with the job that groups their faces by person,
   * with the gallery's model. Nobody is enrolled: name the groups, and enroll those you want.
   */
  groupPhotos(gallery: string, tar: Blob | ReadableStream<Uint8Array>): Promise<T.Job> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/group", { gallery }), body: tar });
  }

  /**
   * Show the groups of photos.
   *
   * Answers the progress of a grouping that this key started and, when it has ended, the faces of each person,
   * by photo and box.
   */
  groups(gallery: string, job: string): Promise<T.PhotoGroups> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/group/{job}", { gallery, job }) });
  }

  /**
   * Export a gallery.
   *
   * Answers with the job that writes the gallery, as of the job's start, to one signed archive. Fetch it from
   * `/v1/jobs/{job}/result`.
   */
  exportGallery(gallery: string, query: { crops?: boolean } = {}): Promise<T.Job> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/export", { gallery }), query });
  }

  /**
   * List the models that can be pulled.
   *
   * Lists the models that this version knows by name, with licence, measurements, size, and where their files
   * are.
   */
  pullable(): Promise<T.PullableModels> {
    return this.send({ method: "GET", path: "/v1/models/pullable" });
  }

  /**
   * Pull a model.
   *
   * Answers with the job that downloads the model, checks its SHA-256 and adds it as a package. If the server
   * can't reach the network, the job's `error` says which files to copy to it. A gallery uses the package if it
   * names it as its `embedder`.
   */
  pullModel(body: T.PullParams): Promise<T.Job> {
    return this.send({ method: "POST", path: "/v1/models/pull", json: { ...body } });
  }

  /**
   * Remove a model.
   *
   * Deletes a package that was added here, with its downloaded and prepared files. Fails if galleries have
   * templates of the package, are moving to it or can go back to it, or if the server uses it. Operating points
   * measured here stay, and are used again if the same package is added again.
   */
  removeModel(packageId: string): Promise<void> {
    return this.send({ method: "DELETE", path: path("/v1/models/{package}", { package: packageId }), answer: "nothing" });
  }

  /**
   * Report a track.
   *
   * Takes up to 8 photos of one person's face, the best of a visit so far. The caller chooses the id, and uses
   * it again for later reports on the same track. The usable faces are fused and decided once. A later decision
   * that contradicts the first one replaces it, at most once.
   */
  tellSighting(gallery: string, sighting: string, images: readonly Image[], query: { camera?: string; zone?: string | null; first_at?: string | null; last_at?: string | null; ended?: boolean } = {}): Promise<T.Sighting> {
    return this.send({ method: "PUT", path: path("/v1/galleries/{gallery}/sightings/{sighting}", { gallery, sighting }), images: { images: images }, query });
  }

  /**
   * Report that a track goes on, or has ended.
   *
   * A track without a report for a minute has ended.
   */
  hearSighting(gallery: string, sighting: string, body: T.SightingHeard): Promise<T.Sighting> {
    return this.send({ method: "PATCH", path: path("/v1/galleries/{gallery}/sightings/{sighting}", { gallery, sighting }), json: { ...body } });
  }

  /**
   * Show a sighting.
   *
   * Answers whom it shows, the score, and the rate that the decision was made at.
   */
  sighting(gallery: string, sighting: string): Promise<T.Sighting> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/sightings/{sighting}", { gallery, sighting }) });
  }

  /**
   * Delete a sighting.
   *
   * Deletes it with its crop and its events.
   */
  deleteSighting(gallery: string, sighting: string): Promise<void> {
    return this.send({ method: "DELETE", path: path("/v1/galleries/{gallery}/sightings/{sighting}", { gallery, sighting }), answer: "nothing" });
  }

  /**
   * List sightings.
   *
   * Lists who was in front of which camera and when, newest first, page by page.
   */
  sightings(gallery: string, query: { camera?: string | null; decision?: T.Decision | null; subject?: string | null; stranger?: string | null; since?: string | null; until?: string | null; limit?: number; cursor?: string | null } = {}): Promise<T.SightingPage> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/sightings", { gallery }), query });
  }

  /** The sightings of all pages. */
  allSightings(gallery: string, query: { camera?: string | null; decision?: T.Decision | null; subject?: string | null; stranger?: string | null; since?: string | null; until?: string | null; limit?: number; cursor?: string | null } = {}): AsyncGenerator<T.Sighting> {
    return pages((cursor) => this.sightings(gallery, { ...query, ...(cursor === undefined ? {} : { cursor }) }), (page) => page.sightings);
  }

  /**
   * Delete sightings.
   *
   * Deletes the sightings that the parameters select, by default all of the gallery, with their crops and
   * events.
   */
  deleteSightings(gallery: string, query: { camera?: string | null; decision?: T.Decision | null; subject?: string | null; stranger?: string | null; since?: string | null; until?: string | null } = {}): Promise<T.Deleted> {
    return this.send({ method: "DELETE", path: path("/v1/galleries/{gallery}/sightings", { gallery }), query });
  }

  /**
   * Show a sighting's crop.
   *
   * Answers the best aligned face, as JPEG, as long as it is kept.
   */
  sightingCrop(gallery: string, sighting: string): Promise<Blob> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/sightings/{sighting}/crop", { gallery, sighting }), answer: "blob" });
  }

  /**
   * Say who a sighting shows.
   *
   * With a subject, the sighting shows this subject from now on. With null, it does not show the person it was
   * taken for, and a correction is recorded. Nobody is enrolled from a sighting unless this request asks for it.
   */
  sayWho(gallery: string, sighting: string, body: T.Who = {}): Promise<T.Sighting> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/sightings/{sighting}/who", { gallery, sighting }), json: { ...body } });
  }

  /**
   * Report the state of cameras.
   *
   * Takes whether a camera sends pictures, and what they have shown in the last hour.
   */
  tellCameras(gallery: string, body: T.CamerasTold): Promise<void> {
    return this.send({ method: "PUT", path: path("/v1/galleries/{gallery}/cameras", { gallery }), json: { ...body }, answer: "nothing" });
  }

  /**
   * List cameras.
   *
   * Lists each camera's state, as its watcher reports it, and how many sightings it had in the last hour.
   */
  cameras(gallery: string): Promise<T.CameraList> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/cameras", { gallery }) });
  }

  /**
   * List strangers.
   *
   * Lists unknown people who were seen well, each once, newest first, if `LIKENESS_STRANGER_DAYS` is set.
   */
  strangers(gallery: string, query: { limit?: number; cursor?: string | null; ignored?: boolean | null } = {}): Promise<T.StrangerPage> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/strangers", { gallery }), query });
  }

  /** The strangers of all pages. */
  allStrangers(gallery: string, query: { limit?: number; cursor?: string | null; ignored?: boolean | null } = {}): AsyncGenerator<T.Stranger> {
    return pages((cursor) => this.strangers(gallery, { ...query, ...(cursor === undefined ? {} : { cursor }) }), (page) => page.strangers);
  }

  /**
   * Show a stranger.
   *
   * Answers how often, when and where the stranger was seen. To list the sightings, pass `stranger` to their
   * list.
   */
  stranger(gallery: string, stranger: string): Promise<T.Stranger> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/strangers/{stranger}", { gallery, stranger }) });
  }

  /**
   * Ignore a stranger, or note who it may be.
   *
   * An ignored stranger, such as the postman, causes no events.
   */
  editStranger(gallery: string, stranger: string, body: T.StrangerEdit): Promise<T.Stranger> {
    return this.send({ method: "PATCH", path: path("/v1/galleries/{gallery}/strangers/{stranger}", { gallery, stranger }), json: { ...body } });
  }

  /**
   * Forget a stranger.
   *
   * Deletes all sightings of the stranger, with crops, templates and events.
   */
  forgetStranger(gallery: string, stranger: string): Promise<void> {
    return this.send({ method: "DELETE", path: path("/v1/galleries/{gallery}/strangers/{stranger}", { gallery, stranger }), answer: "nothing" });
  }

  /**
   * Look for a stranger in other sightings.
   *
   * Lists sightings that could be named together with the stranger: a person chooses.
   */
  resemblingSightings(gallery: string, stranger: string): Promise<T.ResemblingList> {
    return this.send({ method: "GET", path: path("/v1/galleries/{gallery}/strangers/{stranger}/resembling", { gallery, stranger }) });
  }

  /**
   * Name a stranger.
   *
   * Enrolls the stranger's best crops as the subject, which is created if missing; all sightings become the
   * subject's.
   */
  nameStranger(gallery: string, stranger: string, body: T.StrangerName): Promise<T.Named> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/strangers/{stranger}/name", { gallery, stranger }), json: { ...body } });
  }

  /**
   * Merge a stranger into another one.
   *
   * The two are one person; later groupings don't separate them.
   */
  mergeStrangers(gallery: string, stranger: string, body: T.StrangerMerge): Promise<T.Stranger> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/strangers/{stranger}/merge", { gallery, stranger }), json: { ...body } });
  }

  /**
   * Split a stranger.
   *
   * The given sightings are of another person, who becomes a new stranger; later groupings don't join them.
   */
  partStranger(gallery: string, stranger: string, body: T.StrangerPart): Promise<T.Stranger> {
    return this.send({ method: "POST", path: path("/v1/galleries/{gallery}/strangers/{stranger}/part", { gallery, stranger }), json: { ...body } });
  }

  /**
   * List webhooks.
   *
   * Lists each webhook with the number of the last event sent to it, and its problem if it has one.
   */
  webhooks(): Promise<T.WebhookList> {
    return this.send({ method: "GET", path: "/v1/webhooks" });
  }

  /**
   * Make a webhook.
   *
   * Events from now on are posted to the address, in order, each at least once. They are signed with a secret
   * that only this answer contains. Private addresses need `LIKENESS_WEBHOOK_NETWORKS`. `subjects` stay the same
   * people when an id changes or subjects are merged. Deleted people are removed from the list; when it is
   * empty, nothing more is sent.
   */
  createWebhook(body: T.WebhookCreate): Promise<T.WebhookMade> {
    return this.send({ method: "POST", path: "/v1/webhooks", json: { ...body } });
  }

  /**
   * Show a webhook.
   *
   * Answers where it sends which events, and whether that succeeds.
   */
  webhook(webhook: string): Promise<T.Webhook> {
    return this.send({ method: "GET", path: path("/v1/webhooks/{webhook}", { webhook }) });
  }

  /**
   * Delete a webhook.
   *
   * Nothing more is sent to it.
   */
  deleteWebhook(webhook: string): Promise<void> {
    return this.send({ method: "DELETE", path: path("/v1/webhooks/{webhook}", { webhook }), answer: "nothing" });
  }

  /**
   * Resume a webhook.
   *
   * A webhook that was set aside continues where it stopped, as far as the events are still kept.
   */
  resumeWebhook(webhook: string): Promise<T.Webhook> {
    return this.send({ method: "POST", path: path("/v1/webhooks/{webhook}/resume", { webhook }) });
  }
}
